"""docs/alarms.md: ``python -m oger_recipe.settings.alarm_page > docs/alarms.md`` writes it anew."""

from oger_recipe.algorithm.alarms import ALARMS, RECENT

_HEAD = f"""\
# Alarms

Written by `python -m oger_recipe.settings.alarm_page > docs/alarms.md`, from `oger_recipe/algorithm/alarms.py`.

This page is for everybody who trains: what a run warns of by itself, and how to make it stop instead.

```yaml
oger: {{alarms: {{solve_rate_lost: stop, truncation: off}}}}
```

A run checks its metrics after every step and every evaluation, and raises an alarm when training goes wrong:

```
WARNING: step 41: the policy has collapsed: it solved 0.301 of its rollouts at its best, and 0.012 in the last 5 steps
(rollout/solve_rate: 0.012, limit: 0.07525). A new run with a lower actor.adam.lr is the usual remedy; the newest
checkpoint from before the collapse is kept (oger.alarms.solve_rate_lost)
```

The run prints an alarm once, and again if it returns after it has cleared. `oger watch`, `oger runs` and the page of
the run show it, too. `events.jsonl` records `alarm` (name, step, metric, value, limit, level, text) and
`alarm_cleared`. The metric `alarms/raised` counts the alarms that are raised.

Each alarm has a level, `oger.alarms.<name>`:

| level | what happens |
|---|---|
| `warn` (default) | the run prints the alarm and continues |
| `stop` | the run saves a checkpoint (none with `ckpt.disable_ds`), removes none for it and exits with 1; so does a \
resumed one while it is found |
| `off` | the alarm is never raised |

- *Recent steps* are the last {RECENT} steps. A *window* is `oger.alarms.window` steps (default 10), and the
  *first steps* are the first window. With a smaller window, recent steps are fewer, too.
- An alarm clears when it has not been found for a window of steps.
- Alarms follow from `metrics.jsonl` and `eval/` alone. A resumed run knows which ones are raised.
- Some failures stop a run in any case: parameters that are not finite, an engine with other weights
  (`oger.max_logprob_difference`), grading and sources that fail ([running.md](running.md#when-a-run-ends-early)).

"""


def page() -> str:
    lines = [_HEAD + "| alarm | reads | raised when | why this limit | what to do |\n|---|---|---|---|---|"]
    for name, alarm in ALARMS.items():
        reads = ", ".join(f"`{metric}`" for metric in alarm.reads)
        cells = (f"`{name}`", reads, alarm.when, alarm.why, alarm.advice)
        lines.append("| " + " | ".join(cell.replace("<", "&lt;") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
