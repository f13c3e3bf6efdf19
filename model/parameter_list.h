/* The parameters of a model, listed from its sizes alone: names, shapes, and places in the flat
 * arrays. For the layout, and for those who read and write files without a model in memory. */
#ifndef MODEL_PARAMETER_LIST_H
#define MODEL_PARAMETER_LIST_H

#include "model/gpt.h"

/* The sizes in config->model, without a batch. */
struct gpt_shape parameter_shape(const struct config *config);

/* An stb_ds array in the order of the flat arrays. Stores how many elements a flat array has, and
 * how many of them are decayed. Of the shape the sizes without the batch are read. */
struct parameter *parameter_list(const struct gpt_shape *shape, int64_t *count, int64_t *decayed);

/* Elements that a parameter of this shape takes in a flat array. */
int64_t parameter_elements(int64_t rows, int64_t columns);

#endif
