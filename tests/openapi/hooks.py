"""Hooks for the fuzzer, which loads this file by itself, without our code: they put names that the
gateway knows in place of most random ones, so that cases get past the first check.
"""

import os
import random
import re

import schemathesis

ROUTES = os.environ["FUZZ_ROUTES"].split(",")
RESPONSE = os.environ["FUZZ_RESPONSE"]
REQUEST = os.environ["FUZZ_REQUEST"]
# A well-formed unknown id is looked up three times within a second; a few of them are enough.
RESPONSE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
KEPT_UNKNOWN = 0.01
draw = random.Random(1)


def known(value, name):
    """Return the known name in place of a text that would be an unknown one."""
    is_unknown = isinstance(value, str) and RESPONSE_ID.fullmatch(value) is not None
    return name if is_unknown and draw.random() > KEPT_UNKNOWN else value


@schemathesis.hook
def map_body(context, body):
    """Ask for a route that exists, most of the time."""
    if isinstance(body, dict):
        if isinstance(body.get("model"), str) and draw.random() < 0.9:
            body["model"] = draw.choice(ROUTES)
        if "previous_response_id" in body:
            body["previous_response_id"] = known(body["previous_response_id"], RESPONSE)
    return body


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Ask for a response, a request and a route that exist, most of the time."""
    if path_parameters:
        if "response_id" in path_parameters:
            path_parameters["response_id"] = known(path_parameters["response_id"], RESPONSE)
        if "request_id" in path_parameters and draw.random() < 0.3:
            path_parameters["request_id"] = REQUEST
        if "model" in path_parameters and draw.random() < 0.3:
            path_parameters["model"] = draw.choice(ROUTES)
    return path_parameters
