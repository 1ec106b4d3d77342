"""Output for people: text, pictures and trackers.

progress       lines on stdout
plots          learning curves and sweeps as pictures
lineage        the history of a population
render         GIFs of episodes
trackers       wandb and TensorBoard
results        the results of a sweep
comparison     runs side by side
evaluation     episodes of a saved policy
brief          how a result prints itself
pace           seconds and steps per second
"""
