#!/usr/bin/env python3
"""Run llama.cpp's prebuilt CPU libraries and print what they reach: tokens per second, or the time to a first token.

The libraries are those of the npm package `@node-llama-cpp/linux-x64` 3.22.1 (llama.cpp v0.5.0; the layouts below are that
version's). Everything happens through its C interface, so nothing is measured but the library: batches of 512, an f16
cache, logits of the last token, which is waited for before the next token is asked for, as llama-bench does.

    peer_llama.py LIBDIR MODEL --tests pp512,tg128,tg32@2048 -t 2 -r 3    one JSON object a line: test, tps
    peer_llama.py LIBDIR MODEL --ids 1,2,3 -n 32 -c 2048    a start: a line when logits are there, then times and memory
    peer_llama.py ... --cpu haswell                                      that build for AVX2 instead of the machine's best
"""
import argparse
import ctypes as c
import glob
import json
import os
import random
import sys
import time

POINTER, INT, UINT, FLOAT, BOOL, SIZE = c.c_void_p, c.c_int32, c.c_uint32, c.c_float, c.c_bool, c.c_size_t


def fields(**names):
    """A structure's fields: `type="name name"`, in the order given; a digit behind a type only keeps the keys apart."""
    kinds = {"pointer": POINTER, "int": INT, "uint": UINT, "float": FLOAT, "bool": BOOL, "size": SIZE}
    return [(name, kinds[kind.rstrip("0123456789")]) for kind, row in names.items() for name in row.split()]


class ModelParams(c.Structure):
    _fields_ = fields(
        pointer="devices overrides", int="n_gpu_layers split_mode load_mode lazy_mode main_gpu",
        pointer2="tensor_split progress progress_data kv_overrides",
        bool="vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp")


class ContextParams(c.Structure):
    _fields_ = fields(
        uint="n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq",
        int="n_threads n_threads_batch context_type rope_scaling pooling attention flash_attention",
        float="rope_base rope_scale yarn_ext yarn_attn yarn_fast yarn_slow", uint2="yarn_context", float2="defrag",
        pointer="eval eval_data", int2="type_k type_v", pointer2="abort abort_data",
        bool="embeddings offload_kqv no_perf op_offload swa_full kv_unified",
        pointer3="samplers", size="n_samplers", pointer4="other")


class Batch(c.Structure):
    _fields_ = fields(int="n_tokens", pointer="token embedding pos n_seq_id seq_id logits")


class Llama:
    """The libraries, a model, and a context."""

    def __init__(self, folder, model, context, threads, cpu):
        def library(pattern):
            found = sorted(glob.glob(os.path.join(folder, pattern)))
            if not found:
                sys.exit(f"no {pattern} in {folder}: unpack the npm package @node-llama-cpp/linux-x64 there")
            return c.CDLL(found[0], mode=c.RTLD_GLOBAL)

        library("libggml-base.so")
        registry, self.lib = library("libggml.*.so"), library("libllama.*.so")
        quiet = c.CFUNCTYPE(None, c.c_int, c.c_char_p, POINTER)
        self.quiet = quiet(lambda level, text, _: level == 4 and sys.stderr.buffer.write(text))
        self.lib.llama_log_set(self.quiet, None)
        if cpu:
            path = os.path.join(folder, f"libggml-cpu-{cpu}.so").encode()
            registry.ggml_backend_load.restype = POINTER
            if not registry.ggml_backend_load(path):
                sys.exit(f"cannot load {path.decode()}")
        else:
            registry.ggml_backend_load_all_from_path(folder.encode())
        self.declare()
        self.lib.llama_backend_init()
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = self.lib.llama_model_load_from_file(model.encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {model}")
        self.vocabulary = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))
        params = self.lib.llama_context_default_params()
        found = (params.n_batch, params.n_ubatch, params.type_k, params.type_v, params.flash_attention)
        if found != (2048, 512, 1, 1, -1):
            sys.exit(f"the structures of these libraries are not those of v0.5.0: defaults read as {found}")
        params.n_ctx, params.no_perf = context, True
        params.n_threads = params.n_threads_batch = threads
        self.context = self.lib.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit(f"llama.cpp makes no context of {context} tokens")
        self.memory = self.lib.llama_get_memory(self.context)

    def declare(self):
        signatures = {
            "llama_model_default_params": (ModelParams, []),
            "llama_context_default_params": (ContextParams, []),
            "llama_model_load_from_file": (POINTER, [c.c_char_p, ModelParams]),
            "llama_model_get_vocab": (POINTER, [POINTER]),
            "llama_vocab_n_tokens": (INT, [POINTER]),
            "llama_init_from_model": (POINTER, [POINTER, ContextParams]),
            "llama_decode": (INT, [POINTER, Batch]),
            "llama_synchronize": (None, [POINTER]),
            "llama_get_memory": (POINTER, [POINTER]),
            "llama_memory_clear": (None, [POINTER, BOOL]),
            "llama_memory_seq_rm": (BOOL, [POINTER, INT, INT, INT]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments

    def feed(self, ids):
        """Evaluates tokens behind those in the cache and waits for the last one's logits."""
        for start in range(0, len(ids), 2048):
            part = ids[start:start + 2048]
            array = (INT * len(part))(*part)
            status = self.lib.llama_decode(self.context, Batch(len(part), c.addressof(array)))
            if status:
                sys.exit(f"llama_decode failed with {status}")
        self.lib.llama_synchronize(self.context)

    def measure(self, test, repetitions):
        """Tokens per second of each repetition, after one that warms up."""
        kind, count, depth = parse(test)
        draw = random.Random(7)
        ids = [draw.randrange(self.vocabulary) for _ in range(depth + count)]
        self.lib.llama_memory_clear(self.memory, False)
        if depth:
            self.feed(ids[:depth])
        speeds = []
        for _ in range(repetitions + 1):
            began = time.perf_counter()
            if kind == "pp":
                self.feed(ids[depth:])
            else:
                for token in ids[depth:]:
                    self.feed([token])
            speeds.append(count / (time.perf_counter() - began))
            if depth:
                self.lib.llama_memory_seq_rm(self.memory, 0, depth, -1)
            else:
                self.lib.llama_memory_clear(self.memory, False)
        return speeds[1:]


def parse(test):
    """`pp512` or `tg32@2048` as kind, tokens, depth."""
    name, _, depth = test.partition("@")
    return name[:2], int(name[2:]), int(depth or 0)


def peak_memory():
    """The most memory this process has had, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder")
    options.add_argument("model")
    options.add_argument("--tests", default="pp512,tg128")
    options.add_argument("--ids", help="a prompt, as token ids: measures a start instead of the tests")
    options.add_argument("-n", type=int, default=1)
    options.add_argument("-c", type=int, default=2048)
    options.add_argument("-t", type=int, default=2)
    options.add_argument("-r", type=int, default=3)
    options.add_argument("--cpu", help="a build by its name, as haswell or zen4")
    args = options.parse_args()
    began = time.perf_counter()
    if args.ids:
        llama = Llama(args.folder, args.model, args.c, args.t, args.cpu)
        loaded = time.perf_counter()
        llama.feed([int(id) for id in args.ids.split(",")])
        first = time.perf_counter()
        print("the first token's logits are there", flush=True)
        # Which tokens follow matters for neither time nor memory.
        for token in range(args.n - 1):
            llama.feed([token])
        times = {"load_ms": 1e3 * (loaded - began), "prompt_ms": 1e3 * (first - loaded)}
        print(json.dumps({**times, "peak": peak_memory()}), flush=True)
    else:
        tests = args.tests.split(",")
        context = max(count + depth for _, count, depth in map(parse, tests))
        llama = Llama(args.folder, args.model, (context + 256) // 256 * 256, args.t, args.cpu)
        for test in tests:
            print(json.dumps({"test": test, "tps": llama.measure(test, args.r)}), flush=True)
    # The library's threads have nothing to tidy up.
    os._exit(0)


if __name__ == "__main__":
    main()
