"""Ready-made plugins, each a file with rm_preprocess and most with rm_postprocess; those with a _ are their parts."""
