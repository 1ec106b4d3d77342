"""What reads stored runs and files of the kit, or draws and tracks a run; each module on its own,
imported when asked for.

compare        learning curves and results of several runs
comparison     their table, and scores over several environments
paper          what it makes for a paper: flags, choice of curves, captions
figures        learning curves and performance profiles, as wide as a column
tables         tables in LaTeX, Markdown and CSV
ranking        a sweep ranked again by another objective
sensitivity    one setting for several environments, and what tuning each brings
match          a match between two runs
robustness     returns over a grid of an environment's parameters
studies        a sweep as an Optuna study
evaluation     episodes of a saved policy
render         GIFs of episodes
trackers       wandb and TensorBoard
export         `launch.export`
catalogue      --list
report         the page that a sweep leaves
copying        `--copy DIR`: an algorithm's file with all that it uses of the kit, as one file
"""
