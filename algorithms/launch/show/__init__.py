"""What people look at.

progress       lines on stdout
plots          learning curves and sweeps as pictures
lineage        the history of a population
render         GIFs of episodes
trackers       wandb and TensorBoard
results        what came of a sweep
comparison     runs side by side
evaluation     episodes of a saved policy
brief          what a result shows of itself
pace           seconds, steps per second, learning rate
"""
