/* edit.h - lines from a terminal: libedit, history, completion, pastes taken whole.
 *
 * OWNS the editor and the history file (XDG state directory). A signal interrupts a line.
 * THREAD: main. */
#ifndef MC_CLI_EDIT_H
#define MC_CLI_EDIT_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct mc_edit;

enum mc_edit_end { MC_EDIT_LINE, MC_EDIT_EOF, MC_EDIT_INTERRUPT };

/* interrupt: set by the handler of SIGINT. complete (may be NULL): a malloced, NULL-ended
 * list of malloced words that could stand where the last word of text begins; NULL: none.
 */
struct mc_edit *mc_edit_open(volatile sig_atomic_t *interrupt,
                             char **(*complete)(void *ctx, const char *text), void *ctx);
void mc_edit_close(struct mc_edit *e);

/* A line with its newline, or several when they were pasted; borrowed until the next
 * call. */
enum mc_edit_end mc_edit_line(struct mc_edit *e, const char *prompt, const char **line,
                              size_t *n);
void mc_edit_remember(struct mc_edit *e, const char *text, size_t n);

#endif
