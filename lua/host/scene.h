/* scene.h - made-up steps: the shipped views that every policy must get through, and that
 * its tests may walk through. THREAD: any. */
#ifndef MC_LUA_SCENE_H
#define MC_LUA_SCENE_H

#include "lua/host/step.h"

enum { MC_SCENE_ROWS = 128, MC_SCENE_LANES = 2 };

/* One block as the engine lays it out. */
struct mc_scene {
    struct mc_record record; /* of view */
    struct mc_step_view view;
    struct mc_row row[MC_SCENE_ROWS];
    struct mc_party lane[MC_SCENE_LANES], tenant[1];
    int32_t order[MC_N_ORDER * MC_SCENE_ROWS];
};

/* Fills the i-th; its name, NULL past the last. */
const char *mc_scene_make(struct mc_scene *s, int i);

#endif
