/* files.h - files of the policy directory, for res:file. THREAD: the VM's. */
#ifndef MC_BIND_FILES_H
#define MC_BIND_FILES_H

#include <lua.h>

/* file(dir, name) -> text, tag; nil, error. In the generation's directory. */
int mc_bind_file(lua_State *L);

#endif
