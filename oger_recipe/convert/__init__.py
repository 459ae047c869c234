"""From a command line of OGER or LUFFY (``verl.mix_src.main_mix_ppo``) to a recipe file."""
