"""A version taken in place (scripts/python/weightfs/vllm), by small models with loaders of every shape:
what a change gives is what a load of the whole version gives, or the model is refused.

Runs in the environment of scripts/engines.sh, either one: only torch and safetensors are needed.
"""

import functools
import json
import os
import random
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
sys.path.insert(0, os.path.join(HERE, "..", "..", "scripts", "python"))

import engines_python  # noqa: E402

if sys.executable != engines_python.PYTHON and os.path.exists(engines_python.PYTHON):
    os.execv(engines_python.PYTHON, [engines_python.PYTHON, *sys.argv])

if os.path.exists(engines_python.PYTHON):
    import torch
    from safetensors.torch import save_file
    from weightfs.safetensors_file import INDEX
    from weightfs.vllm import delta, digest, mapping, session, staging
    from weightfs.vllm.mapping import CannotMap, Source

SEED = int(os.environ.get("WEIGHTFS_TEST_SEED", random.randrange(1 << 31)))
LIMIT = 60  # seconds, for what another thread does


def parameter(*shape, dtype=None):
    return torch.nn.Parameter(torch.zeros(shape, dtype=dtype or torch.bfloat16),
                              requires_grad=False)


class Model(torch.nn.Module):
    """`shapes`: the checkpoint's tensors. `loaders`: {name: what load(tensor) does}."""

    dtype = None

    def __init__(self):
        super().__init__()
        self.shapes, self.loaders = {}, {}

    def source(self, name, shape, load):
        self.shapes[name], self.loaders[name] = shape, load

    def load_weights(self, weights):
        for name, tensor in weights:
            self.loaders[name](tensor)

    def checkpoint(self):
        return [Source(name, self.dtype or torch.bfloat16, shape)
                for name, shape in self.shapes.items()]


class Packed(Model):
    """Rank `rank` of two: QKV and gate-up packed row-wise, output projections sliced by column, a padded
    vocabulary, a norm, a tied head, and a bias by assignment."""

    def __init__(self, rank=0):
        super().__init__()
        self.qkv, self.gate_up, self.down = parameter(16, 6), parameter(10, 6), parameter(6, 5)
        self.embed, self.norm, self.bias = parameter(12, 6), parameter(6), parameter(4, 3)
        self.head = torch.nn.Linear(6, 12, bias=False)
        self.head.weight = self.embed  # tied
        for name, begin, rows in (("q", 0, 8), ("k", 8, 4), ("v", 12, 4)):
            self.source(name, (rows * 2, 6), lambda w, begin=begin, rows=rows:
                        self.qkv.data.narrow(0, begin, rows).copy_(w.narrow(0, rank * rows, rows)))
        for at, name in enumerate(("gate", "up")):
            self.source(name, (10, 6), lambda w, at=at:
                        self.gate_up[at * 5:at * 5 + 5].data.copy_(w[rank * 5:rank * 5 + 5]))
        self.source("down", (6, 10), lambda w: self.down.data.copy_(w.narrow(1, rank * 5, 5)))
        self.source("embed", (20, 6), self.load_embed)
        self.source("norm", (1, 6), lambda w: self.norm.data.copy_(w.view(-1).clone()))
        self.source("bias", (6, 4), lambda w: self.assign(w[1:4].t()))
        self.source("head", (20, 6), lambda w: None)  # as tied models skip it

    def load_embed(self, w):
        self.embed[:10].data.copy_(w[5:15])
        self.embed[10:].data.fill_(0)

    def assign(self, w):
        self.bias.data[:, :] = w


class Experts(Model):
    """w13 is one tensor of all experts, w2 is sliced by column; a fused checkpoint beside it."""

    def __init__(self):
        super().__init__()
        self.w13, self.w2 = parameter(3, 8, 6), parameter(3, 6, 4)
        self.fused, self.scale = parameter(3, 4, 5), parameter(3)
        for expert in range(3):
            for at, name in enumerate(("w1", "w3")):
                self.source(f"{expert}.{name}", (8, 6), lambda w, expert=expert, at=at:
                            self.w13.data[expert].narrow(0, at * 4, 4).copy_(
                                w.to(self.w13.device).narrow(0, 4, 4)))
            self.source(f"{expert}.w2", (6, 8), lambda w, expert=expert:
                        self.w2.data[expert].copy_(w[:, 4:].contiguous()))
            self.source(f"{expert}.scale", (), lambda w, expert=expert:
                        self.scale.data[expert].copy_(w))
        self.source("fused", (3, 5, 4), lambda w: self.fused.data.copy_(w.transpose(1, 2)))


class Mixed(Model):
    """A wider parameter than the checkpoint has, and two views of one storage."""

    def __init__(self):
        super().__init__()
        self.wide = parameter(4, 6, dtype=torch.float32)
        whole = torch.zeros(8, 6, dtype=torch.bfloat16)
        self.low = torch.nn.Parameter(whole[:4], requires_grad=False)
        self.odd = torch.nn.Parameter(whole[4:].t(), requires_grad=False)
        self.register_buffer("seen", torch.zeros(6, dtype=torch.bfloat16))
        for name, to in (("wide", self.wide), ("low", self.low)):
            self.source(name, (4, 6), to.data.copy_)
        self.source("odd", (6, 4), self.odd.data.copy_)
        self.source("seen", (6,), self.seen.copy_)


class Eights(Model):
    def __init__(self):
        super().__init__()
        self.dtype = torch.float8_e4m3fn
        self.w = parameter(40, 7, dtype=self.dtype)
        self.source("w", (40, 7), self.w.data.copy_)


MODELS = (Packed, functools.partial(Packed, 1), Experts, Mixed, Eights)


def as_bits(tensor):
    return tensor.contiguous().view(mapping.INTEGERS[tensor.element_size()])


def state_of(model):
    return {name: as_bits(tensor.detach()).clone() for name, tensor, _ in mapping.tensors_of(model)}


class Versions:
    """Checkpoints of random bits, NaN and -0.0 among them, and the changes between them, as a mount
    shows them."""

    def __init__(self, test, model):
        self.rng, self.model = random.Random(SEED), model
        print(f"seed {SEED}", file=sys.stderr)
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.mount, self.all = folder.name, []
        os.mkdir(os.path.join(self.mount, "deltas"))
        self.add({one.name: self.random(one.dtype, one.shape) for one in model.checkpoint()})

    def random(self, dtype, shape):
        width = torch.empty(0, dtype=dtype).element_size()
        count = functools.reduce(lambda a, b: a * b, shape, 1)
        data = bytearray(self.rng.randbytes(count * width))
        return torch.frombuffer(data, dtype=dtype).reshape(shape)

    def add(self, tensors):
        self.all.append(tensors)
        folder = os.path.join(self.mount, "versions", str(len(self.all)))
        os.makedirs(folder)
        save_file(tensors, os.path.join(folder, "model.safetensors"))

    def step(self, share=0.3):
        """A version in which about this share has changed, and the change from the one before."""
        old, new = self.all[-1], {}
        for name, tensor in old.items():
            other = self.random(tensor.dtype, tuple(tensor.shape))
            keep = torch.tensor([self.rng.random() >= share for _ in range(tensor.numel())])
            bits = torch.where(keep.reshape(tensor.shape), as_bits(tensor), as_bits(other))
            if bits.numel() > 1 and tensor.dtype == torch.bfloat16:
                bits.view(-1)[0], bits.view(-1)[1] = 0x7FC1, -0x8000  # NaN, -0.0
            new[name] = bits.view(tensor.dtype)
        self.add(new)
        self.write_delta(len(self.all) - 1, len(self.all))

    def write_delta(self, older, newer):
        arrays, names = {}, []
        for name, new in self.all[newer - 1].items():
            old = self.all[older - 1][name]
            where = (as_bits(new) != as_bits(old)).reshape(-1).nonzero().reshape(-1)
            if len(where) == 0:
                continue
            names.append(name)
            arrays[f"{name}.indices"] = where.to(torch.int32)
            arrays[f"{name}.values"] = new.reshape(-1)[where]
            arrays[f"{name}.old"] = old.reshape(-1)[where]
        save_file(arrays, delta.delta_path(self.mount, older, newer),
                  {"changed_params": json.dumps(names)})

    def load(self, version):
        self.model.load_weights(iter(self.all[version - 1].items()))

    def learn(self):
        return mapping.learn(self.model, delta.checkpoint_of(self.mount, 1))

    def stage(self, learned, older, newer):
        return staging.stage(learned, delta.changes_of(
            delta.delta_path(self.mount, older, newer), learned.sources))


class Learned(unittest.TestCase):
    def assert_same(self, got, wanted):
        self.assertEqual(got.keys(), wanted.keys())
        for name in wanted:
            self.assertTrue(torch.equal(got[name], wanted[name]), name)

    def test_a_change_in_place_is_what_a_load_gives(self):
        for make in MODELS:
            with self.subTest(make=make):
                versions = Versions(self, make())
                for _ in range(3):
                    versions.step()
                versions.load(1)
                before = state_of(versions.model)
                learned = versions.learn()
                self.assert_same(state_of(versions.model), before)  # nothing was written
                for version in (2, 3, 4):
                    staged = versions.stage(learned, version - 1, version)
                    staged.apply()
                    got = state_of(versions.model)
                    versions.load(version)
                    self.assert_same(got, state_of(versions.model))

    def test_ranks_take_only_their_part(self):
        counts = []
        for rank in (0, 1):
            versions = Versions(self, Packed(rank))
            versions.step(share=1)
            versions.load(1)
            counts.append(versions.stage(versions.learn(), 1, 2).changes)
            whole = sum(tensor.numel() for tensor in versions.all[0].values())
            self.assertLess(counts[-1], whole * 0.7)

    def test_other_threads_are_not_watched(self):
        """They compute while it learns."""
        model = Packed()
        begun, done, results = threading.Event(), threading.Event(), []

        def compute():
            begun.wait(LIMIT)
            results.append(float((torch.ones(4) * 2).sum().item()))
            done.set()

        thread = threading.Thread(target=compute)
        thread.start()
        load = model.loaders["q"]

        def waits(tensor):
            begun.set()
            self.assertTrue(done.wait(LIMIT))
            load(tensor)

        model.loaders["q"] = waits
        mapping.learn(model, model.checkpoint())
        thread.join()
        self.assertEqual(results, [8.0])

    def test_what_lies_elsewhere_is_learned_again(self):
        model = Packed()
        learned = mapping.learn(model, model.checkpoint())
        self.assertTrue(learned.is_of(model))
        model.norm.data = model.norm.data.clone()
        self.assertFalse(learned.is_of(model))


class Refused(unittest.TestCase):
    def refuse(self, change, words, make=Packed):
        model = make()
        change(model)
        before = state_of(model)
        there = [(name, id(tensor), tensor.data_ptr()) for name, tensor, _ in mapping.tensors_of(model)]
        with self.assertRaisesRegex(CannotMap, words):
            mapping.learn(model, model.checkpoint())
        self.assertEqual([(name, id(tensor), tensor.data_ptr())
                          for name, tensor, _ in mapping.tensors_of(model)], there)
        for name, tensor in state_of(model).items():
            self.assertTrue(torch.equal(tensor, before[name]), name)

    def loader(self, name, load, words, make=Packed):
        self.refuse(lambda model: model.loaders.update({name: functools.partial(load, model)}),
                    words, make)

    def test_a_loader_that_computes(self):
        self.loader("norm", lambda m, w: m.norm.data.copy_(w.view(-1) + 1), "computes with 'norm'")
        self.loader("norm", lambda m, w: m.norm.data.add_(w.view(-1)), "changes 'norm' by")
        self.loader("norm", lambda m, w: m.norm.data.copy_(w.view(-1)).mul_(2), "changes 'norm' by")
        self.loader("norm", lambda m, w: m.norm.data.copy_(torch.cat([w[0, :3], w[0, 3:]])),
                    "computes with 'norm'")
        self.loader("norm", lambda m, w: m.norm.data.copy_(w.view(-1).float()), "converts 'norm'")

    def test_a_loader_that_looks_at_values(self):
        self.loader("norm", lambda m, w: w[0, 0].item() > 0, "looks at the values of 'norm'")
        self.loader("norm", lambda m, w: w.abs().max(), "computes with 'norm'")
        self.loader("norm", lambda m, w: w.numpy(), "without values")

    def test_a_loader_that_replaces_what_it_loads(self):
        def replace(model, w):
            model.norm = parameter(6)
        self.loader("norm", replace, "replaces the model's tensors")

        self.loader("norm", lambda m, w: setattr(m, "norm", torch.nn.Parameter(
            w.view(-1), requires_grad=False)), "replaces the model's tensors")

        def replace_module(model, w):
            model.head = torch.nn.Module()
            model.head.weight = parameter(12, 6)
            model.more = torch.nn.Module()
        self.loader("norm", replace_module, "replaces the model's tensors")

        def replace_and_fail(model, w):
            replace_module(model, w)
            raise ValueError("planted")
        self.loader("norm", replace_and_fail, "without values: ValueError: planted")
        self.loader("norm", lambda m, w: setattr(m.norm, "data", torch.zeros(6, dtype=torch.bfloat16)),
                    "replaces the model's tensors")
        self.loader("norm", lambda m, w: setattr(m.norm, "data", w.view(-1)), "without values")

    def test_a_parameter_that_is_not_covered(self):
        self.loader("norm", lambda m, w: None, "6 of 6 elements of 'norm' do not come from")
        self.loader("k", lambda m, w: m.qkv.data[8:11].copy_(w[:3]), "6 of 96 elements of 'qkv'")
        self.refuse(lambda m: m.register_parameter("more", parameter(3)), "3 of 3 elements of 'more'")

    def test_a_parameter_that_is_covered_twice(self):
        self.loader("k", lambda m, w: m.qkv.data[7:11].copy_(w[:4]), "over what was copied")
        self.loader("head", lambda m, w: m.head.weight[:10].data.copy_(w[:10]), "over what was")

        def fill(model, w):
            Packed.load_embed(model, w)
            model.embed.data[9:].fill_(0)
        self.loader("embed", fill, "a constant is copied over")

    def test_values_from_elsewhere(self):
        self.loader("norm", lambda m, w: m.norm.data.copy_(torch.ones(6)), "are not the checkpoint's")
        self.loader("norm", lambda m, w: m.norm.data.copy_(w[0, 0].expand(6)), "several places")
        self.loader("norm", lambda m, w: m.norm.data.copy_(w[0, 0]), "is repeated")
        self.loader("norm", lambda m, w: m.norm.data.copy_(w.view(torch.int16).view(-1)), "converted")

    def test_tensors_that_no_module_knows(self):
        def keep(model):
            model.hidden = [torch.zeros(6, dtype=torch.bfloat16)]
            model.loaders["norm"] = lambda w: model.hidden[0].copy_(w.view(-1))
        self.refuse(keep, "neither a parameter nor a buffer")

        def temporary(model, w):
            torch.zeros(6, dtype=torch.bfloat16).copy_(w.view(-1))
        self.loader("norm", temporary, "neither a parameter nor a buffer")

    def test_models_without_memory(self):
        with self.assertRaisesRegex(CannotMap, "'w' has no memory"):
            mapping.learn(Eights().to("meta"), [])

    def test_a_checkpoint_with_a_name_twice(self):
        model = Packed()
        with self.assertRaisesRegex(CannotMap, "two tensors 'q'"):
            mapping.learn(model, model.checkpoint() + model.checkpoint())


class Staged(unittest.TestCase):
    def setUp(self):
        self.versions = Versions(self, Packed())
        for _ in range(2):
            self.versions.step()
        self.versions.write_delta(1, 3)
        self.versions.load(1)
        self.learned = self.versions.learn()

    def test_several_versions_at_once(self):
        self.versions.stage(self.learned, 1, 3).apply()
        got = state_of(self.versions.model)
        self.versions.load(3)
        for name, tensor in state_of(self.versions.model).items():
            self.assertTrue(torch.equal(tensor, got[name]), name)

    def test_another_version_is_seen_before_anything_is_written(self):
        for wrong in (2, 3):
            self.versions.load(wrong)
            before = state_of(self.versions.model)
            with self.assertRaisesRegex(staging.WrongVersion, "do not have the old values"):
                self.versions.stage(self.learned, 1, 2)
            self.assert_state(before)

    def test_what_changes_between_staging_and_the_pause_is_seen(self):
        staged = self.versions.stage(self.learned, 1, 2)
        place = staged.scatters[-1]
        place.home.flat[place.indices[0]] ^= 1
        before = state_of(self.versions.model)
        with self.assertRaises(staging.WrongVersion):
            staged.apply()
        self.assert_state(before)

    def test_a_version_that_is_loaded_between_staging_and_the_pause_is_seen_by_a_few_elements(self):
        staged = self.versions.stage(self.learned, 1, 2)
        self.assertGreater(staged.changes, 2 * len(staged.scatters))
        self.versions.load(3)
        before, looks = state_of(self.versions.model), []
        staged.scatters[0].check = lambda every, check=staged.scatters[0].check: (
            looks.append(every), check(every))
        with unittest.mock.patch.object(staging, "LOOKED_AT", 5), \
                self.assertRaises(staging.WrongVersion):
            staged.apply()
        self.assertEqual(looks, [-(-staged.changes // 5)])
        self.assert_state(before)

    def test_a_failure_in_the_middle_puts_the_old_values_back(self):
        before = state_of(self.versions.model)
        count = len(self.versions.stage(self.learned, 1, 2).scatters)
        self.assertGreater(count, 3)
        for broken in range(count):
            for half in (False, True):
                staged = self.versions.stage(self.learned, 1, 2)
                scatter = staged.scatters[broken]
                write, seen = scatter.write, []

                def fail(values, scatter=scatter, write=write, seen=seen, half=half):
                    if seen:
                        return write(values)
                    seen.append(True)
                    if half:
                        middle = len(values) // 2
                        scatter.home.flat[scatter.indices[:middle]] = values[:middle]
                    raise RuntimeError("planted")

                scatter.write = fail
                with self.assertRaisesRegex(RuntimeError, "planted"):
                    staged.apply()
                self.assert_state(before)

    def test_a_change_of_other_tensors_is_refused(self):
        sources = dict(self.learned.sources)
        path = delta.delta_path(self.versions.mount, 1, 2)
        del sources["q"]
        with self.assertRaisesRegex(CannotMap, "'q' changed, and was not in the version"):
            list(delta.changes_of(path, sources))
        sources["q"] = Source("q", torch.float16, (16, 6))
        with self.assertRaisesRegex(CannotMap, "values of 'q' are"):
            list(delta.changes_of(path, sources))
        sources["q"] = Source("q", torch.bfloat16, (2, 6))
        with self.assertRaisesRegex(CannotMap, "'q' has an index behind its end"):
            list(delta.changes_of(path, sources))

    def assert_state(self, wanted):
        for name, tensor in state_of(self.versions.model).items():
            self.assertTrue(torch.equal(tensor, wanted[name]), name)


class Derived(Packed):
    """Computes with a copy of its norm that it made after loading."""

    def __init__(self):
        super().__init__()
        self.derive()

    def derive(self):
        made = self.norm.detach().float() * 2
        self.apply_norm = lambda x: x * made


class Sessions(unittest.TestCase):
    def open(self, model):
        self.versions = Versions(self, model)
        for _ in range(3):
            self.versions.step(share=0.5)
        return session.Session(model, self.versions.mount)

    def reload(self, one, version):
        self.versions.load(version)
        return one.hold(version)

    def wait(self, one, old, new):
        one.stage(old, new)
        one._thread.join(LIMIT)
        return one.status()

    def assert_has(self, version):
        got = state_of(self.versions.model)
        self.versions.load(version)
        for name, tensor in state_of(self.versions.model).items():
            self.assertTrue(torch.equal(tensor, got[name]), name)

    def test_versions_in_place_after_one_proof(self):
        one = self.open(Packed())
        self.assertEqual(one.status()["held"], 0)
        self.reload(one, 1)
        status = self.wait(one, 1, 2)
        self.assertEqual((status["state"], status["error"], status["needs_proof"]),
                         ("ready", "", True))
        one.apply(1, 2)
        self.assertEqual(one.status()["held"], 2)
        one.mark()
        self.versions.load(2)
        self.assertFalse(one.compare()["needs_proof"])
        one.hold(2)
        for new in (3, 4):
            self.assertFalse(self.wait(one, new - 1, new)["needs_proof"])
            one.apply(new - 1, new)
            self.assertEqual(one.status()["held"], new)
        self.assert_has(4)

    def test_staging_returns_at_once(self):
        one = self.open(Packed())
        self.reload(one, 1)
        go, load = threading.Event(), self.versions.model.load_weights

        def waits(weights):
            go.wait(LIMIT)
            return load(weights)

        self.versions.model.load_weights = waits
        self.assertEqual(one.stage(1, 2)["state"], "staging")
        with self.assertRaises(session.NotReady):
            one.apply(1, 2)
        # A reload meanwhile: what was staged for the version before counts for nothing.
        one.hold(0)
        go.set()
        one._thread.join(LIMIT)
        self.assertEqual((one.status()["state"], one.status()["held"]), ("idle", 0))

    def test_a_version_that_is_not_held_is_not_staged(self):
        one = self.open(Packed())
        self.assertIn("holds version unknown, not 1", one.stage(1, 2)["error"])
        self.reload(one, 2)
        self.assertIn("holds version 2, not 1", one.stage(1, 2)["error"])

    def test_a_label_that_is_wrong_is_found_out(self):
        one = self.open(Packed())
        self.versions.load(3)
        one.hold(1)
        status = self.wait(one, 1, 2)
        self.assertEqual(status["state"], "failed")
        self.assertIn("do not have the old values", status["error"])
        self.assertEqual(status["refused"], "")  # after a reload it may work
        self.reload(one, 1)
        self.assertEqual(self.wait(one, 1, 2)["state"], "ready")

    def test_a_load_by_somebody_else_is_seen_whatever_it_changes(self):
        """Also of a version that has the old values wherever the next one changes something."""
        one = self.open(Packed())
        for is_staged in (False, True):
            self.reload(one, 1)
            if is_staged:
                self.assertEqual(self.wait(one, 1, 2)["state"], "ready")
            self.versions.load(1)
            self.assertEqual((one.status()["held"], one.status()["state"]), (0, "idle"))
            with self.assertRaises(session.NotReady):
                one.apply(1, 2)
            self.assertIn("holds version unknown, not 1", one.stage(1, 2)["error"])
        self.assertFalse([name for name in digest.digest(self.versions.model)
                          if "load_weights" in name])  # what the session has is not the model's

    def test_a_proof_that_cannot_be_made_raises_nothing_and_is_none(self):
        """vLLM would keep the answers of other ranks, and give them to the next call."""
        for works in (0, 1):  # digests before the one that fails
            one = self.open(Packed())
            self.reload(one, 1)
            self.wait(one, 1, 2)
            one.apply(1, 2)
            results = [session.digest] * works + [unittest.mock.Mock(
                side_effect=RuntimeError("planted"))] * 2
            with unittest.mock.patch.object(session, "digest",
                                            lambda model, left=results: left.pop(0)(model)):
                one.mark()
                self.versions.load(2)
                status = one.compare()
            self.assertEqual((status["refused"], status["needs_proof"]),
                             ("the proof failed: RuntimeError: planted", True))
            one.hold(2)
            self.assertEqual(one.stage(2, 3)["error"], status["refused"])

    def test_a_failure_in_the_pause_leaves_a_rank_that_holds_nothing(self):
        one = self.open(Packed())
        self.reload(one, 1)
        self.wait(one, 1, 2)
        one._staged.scatters[1].write = lambda values: (_ for _ in ()).throw(RuntimeError("planted"))
        with self.assertRaisesRegex(RuntimeError, "planted"):
            one.apply(1, 2)
        status = one.status()
        self.assertEqual((status["state"], status["held"]), ("failed", 0))
        self.assertIn("planted", status["error"])

    def test_a_delta_that_cannot_be_read_is_a_failure_of_this_version(self):
        one = self.open(Packed())
        self.reload(one, 1)
        path = delta.delta_path(self.versions.mount, 1, 2)
        os.truncate(path, os.path.getsize(path) - 9)
        status = self.wait(one, 1, 2)
        self.assertEqual((status["state"], status["refused"]), ("failed", ""))
        os.remove(path)
        self.assertIn("1-2.with-old.safetensors", self.wait(one, 1, 2)["error"])

    def test_an_engine_goes_on_while_a_delta_is_made(self):
        """Until it is there, open(2) does not return; no other thread of the process may wait for that."""
        one = self.open(Packed())
        self.reload(one, 1)
        path = delta.delta_path(self.versions.mount, 1, 2)
        os.remove(path)
        os.mkfifo(path)
        one.stage(1, 2)
        end = time.monotonic() + LIMIT
        while True:
            try:
                writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # nobody waits for it yet
                self.assertLess(time.monotonic(), end)
        self.assertEqual(one.status()["state"], "staging")
        os.close(writer)
        one._thread.join(LIMIT)
        self.assertEqual(one.status()["state"], "failed")

    def test_a_model_that_cannot_be_mapped_is_refused_for_good(self):
        model = Packed()
        model.register_parameter("more", parameter(3))
        model.source("none", (3,), lambda w: None)
        one = self.open(model)
        self.reload(one, 1)
        refused = self.wait(one, 1, 2)["refused"]
        self.assertIn("3 of 3 elements of 'more'", refused)
        self.reload(one, 2)
        self.assertEqual(one.stage(2, 3)["error"], refused)

    def test_weights_made_of_weights_are_found_by_the_proof(self):
        one = self.open(Derived())
        self.reload(one, 1)
        self.versions.model.derive()
        self.assertEqual(self.wait(one, 1, 2)["state"], "ready")
        one.apply(1, 2)
        one.mark()
        self.versions.load(2)
        self.versions.model.derive()  # as a reload does
        refused = one.compare()["refused"]
        self.assertIn("1 of ", refused)
        self.assertIn("apply_norm.cell0", refused)
        one.hold(2)
        self.assertEqual(one.stage(2, 3)["state"], "failed")

    def test_a_kind_that_changes_for_the_first_time_is_proven_then(self):
        one = self.open(Packed())
        new = dict(self.versions.all[-1])
        self.versions.add({**new, "norm": -new["norm"]})
        self.versions.write_delta(4, 5)
        self.versions.add({name: self.versions.random(t.dtype, tuple(t.shape))
                           for name, t in new.items()})
        self.versions.write_delta(5, 6)
        self.reload(one, 4)
        self.assertTrue(self.wait(one, 4, 5)["needs_proof"])
        one.apply(4, 5)
        one.mark()
        self.assertFalse(one.compare()["needs_proof"])
        self.assertTrue(self.wait(one, 5, 6)["needs_proof"])

    def test_refused_from_the_start(self):
        one = session.Session(Packed(), None, "the engine may sleep")
        one.hold(1)
        self.assertEqual(one.stage(1, 2)["error"], "the engine may sleep")


class Digests(unittest.TestCase):
    def test_every_bit_counts_wherever_it_lies(self):
        class Holder:
            def __init__(self):
                self.inner = {"x": [torch.zeros(5)]}

            def method(self):
                return self

        model = Packed()
        closed, partial = torch.zeros(3, 3), torch.zeros(2)
        model.function = lambda: closed
        model.partial = functools.partial(lambda x: x, partial)
        model.bound = Holder().method
        model.kv_cache = [torch.zeros(4)]
        tensors = [closed, partial, model.bound.__self__.inner["x"][0],
                   model.qkv.data, model.head.weight.data]
        before = digest.digest(model)
        self.assertEqual(before, digest.digest(model))
        for tensor in tensors:
            flat = tensor.view(-1).view(torch.uint8)
            for at in (0, len(flat) // 2, len(flat) - 1):
                flat[at] ^= 0x80
                self.assertNotEqual(digest.digest(model), before)
                flat[at] ^= 0x80
        model.kv_cache[0] += 1
        self.assertEqual(digest.digest(model), before)

    def test_odd_sizes_and_offsets(self):
        whole = torch.arange(0, 41, dtype=torch.uint8)
        seen = {digest.digest_of_tensor(whole[a:b]) for a in range(9) for b in range(30, 42)}
        self.assertEqual(len(seen), 9 * 12)
        self.assertNotEqual(*(digest.digest_of_tensor(torch.tensor(pair, dtype=torch.int64))
                              for pair in ([1, 2], [2, 1])))
        self.assertEqual(digest.digest_of_tensor(torch.zeros(0)), 0)

    def test_blocks_are_of_one_tensor(self):
        tensor = torch.zeros(digest.BLOCK + 3, dtype=torch.int64)
        before = digest.digest_of_tensor(tensor)
        tensor[digest.BLOCK] = 1
        self.assertNotEqual(digest.digest_of_tensor(tensor), before)


class Mounts(unittest.TestCase):
    def test_the_mount_is_what_the_model_s_path_says(self):
        with tempfile.TemporaryDirectory() as root:
            os.mkdir(os.path.join(root, "deltas"))
            for path in ("latest", "latest/", "versions/7", "tags/best"):
                self.assertEqual(delta.find_mount(os.path.join(root, path)), root)
            for path in (root, "org/model", "/nowhere/latest", os.path.join(root, "a/latest"),
                         os.path.join(root, "other/7")):
                with self.assertRaisesRegex(CannotMap, "is not MOUNT/latest"):
                    delta.find_mount(path)

    def test_the_files_are_those_of_the_index(self):
        with tempfile.TemporaryDirectory() as root:
            folder = os.path.join(root, "versions/1")
            os.makedirs(folder)
            for name in ("a", "b"):
                save_file({f"{name}.w": torch.zeros(2, 3)},
                          os.path.join(folder, f"{name}.safetensors"))
            self.assertEqual([one.name for one in delta.checkpoint_of(root, 1)], ["a.w", "b.w"])
            with open(os.path.join(folder, INDEX), "w") as file:
                json.dump({"weight_map": {"b.w": "b.safetensors"}}, file)
            self.assertEqual(list(delta.checkpoint_of(root, 1)),
                             [Source("b.w", torch.float32, (2, 3))])


if __name__ == "__main__":
    engines_python.main()
