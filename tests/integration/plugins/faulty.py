"""A plugin whose faults are asked for by the texts that it gets; its value is the number behind the last space."""

import os
import sys
import time


def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    if "raise before" in text_responses:
        raise KeyError("before")
    return [response for response in text_responses if response != "lost"]


def rm_postprocess(results):
    if "raise 0" in results:
        raise ValueError("this one")
    if "leave 0" in results:
        sys.exit(4)
    if "hang 0" in results:
        time.sleep(600)
    if "exit 0" in results:
        os._exit(3)
    if "crash 0" in results:
        os.abort()
    numbers = [float(result.split()[-1]) for result in results if result != "fewer 0"]
    return [None if number == -1 else number for number in numbers]
