"""For scripts that a test talks to: a line of JSON is a call, [function, arguments], and gets one as its
answer, {"result": ...} or {"error": text}. What libraries print goes to stderr. See engines_python.Worker."""

import json
import os
import sys
import traceback


def answer(functions):
    """Until stdin ends. `functions`: {name: function of JSON values that returns one}."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            reply = {"result": functions[name](*arguments)}
        except Exception:  # the caller's test fails with it
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=replies, flush=True)
