#!/usr/bin/env python3
"""Run ik_llama.cpp (PyPI `ik-llama-cpp-python` 0.1.5, an AVX2 build) and print tokens per second.

The fork of llama.cpp that is fastest on CPUs for the usual block types. Run with the Python that has the package.

    peer_ik.py MODEL --tests pp512,tg128,tg32@2048 -t 2 -r 3 [--repack]    one JSON object a line: test, tps
"""
import argparse
import ctypes as c
import json
import os
import random
import sys
import time

import ik_llama_cpp._ctypes_api as api

BATCH = 2048


class Model:
    def __init__(self, path, context, threads, repack):
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers, params.repack_tensors, params.use_mmap = 0, repack, not repack
        self.model = api.llama_model_load_from_file(path.encode(), params)
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.flash_attn = context, BATCH, 512, True
        params.n_threads = params.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, params)
        if not self.model or not self.context:
            sys.exit(f"ik_llama.cpp cannot load {path}")
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.lib = api._lib
        for name, result, arguments in [
            ("llama_decode", c.c_int32, [c.c_void_p, api.llama_batch]),
            ("llama_batch_init", api.llama_batch, [c.c_int32] * 3),
            ("llama_synchronize", None, [c.c_void_p]),
            ("llama_kv_cache_clear", None, [c.c_void_p]),
            ("llama_kv_cache_seq_rm", c.c_bool, [c.c_void_p, c.c_int32, c.c_int32, c.c_int32]),
        ]:
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.batch = self.lib.llama_batch_init(BATCH, 0, 1)

    def feed(self, ids, at):
        """Evaluates tokens at positions from `at` on and waits; logits of the last of each batch."""
        for start in range(0, len(ids), BATCH):
            part = ids[start:start + BATCH]
            self.batch.n_tokens = len(part)
            for i, token in enumerate(part):
                self.batch.token[i], self.batch.pos[i] = token, at + start + i
                self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
                self.batch.logits[i] = i + 1 == len(part)
            status = self.lib.llama_decode(self.context, self.batch)
            if status:
                sys.exit(f"llama_decode failed with {status}")
        self.lib.llama_synchronize(self.context)

    def measure(self, test, repetitions):
        """Tokens per second of each repetition, after one that warms up."""
        kind, count, depth = parse(test)
        draw = random.Random(7)
        ids = [draw.randrange(1, self.vocabulary) for _ in range(depth + count)]
        self.lib.llama_kv_cache_clear(self.context)
        if depth:
            self.feed(ids[:depth], 0)
        speeds = []
        for _ in range(repetitions + 1):
            began = time.perf_counter()
            if kind == "pp":
                self.feed(ids[depth:], depth)
            else:
                for i in range(depth, depth + count):
                    self.feed(ids[i:i + 1], i)
            speeds.append(count / (time.perf_counter() - began))
            self.lib.llama_kv_cache_seq_rm(self.context, 0, depth, -1)
        return speeds[1:]


def parse(test):
    """`pp512` or `tg32@2048` as kind, tokens, depth."""
    name, _, depth = test.partition("@")
    return name[:2], int(name[2:]), int(depth or 0)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("--tests", default="pp512,tg128")
    options.add_argument("-t", type=int, default=2)
    options.add_argument("-r", type=int, default=3)
    options.add_argument("--repack", action="store_true", help="repack the weights at load")
    args = options.parse_args()
    tests = args.tests.split(",")
    context = max(count + depth for _, count, depth in map(parse, tests))
    model = Model(args.model, (context + 256) // 256 * 256, args.t, args.repack)
    for test in tests:
        print(json.dumps({"test": test, "tps": model.measure(test, args.r)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
