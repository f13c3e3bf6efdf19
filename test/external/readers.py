"""Opens an exported model with one program of others, and compares it with transformers 5.

    python readers.py READER PATH EXPECTED.json

PATH is a folder, or a GGUF file for llama.cpp, openvino-genai and mistral.rs. READER "expect"
writes EXPECTED.json: tokens, the logits of the last position and 16 tokens of greedy text in fp32.
The others print "READER: RESULT": the largest difference of logits, or if the greedy text is equal.
"""

import json
import pathlib
import sys

import numpy

TEXT = "A training step is C above one table of operations with two backends."
NEW = 16


def open_transformers(path):
    import torch
    import transformers
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return torch, model, transformers.AutoTokenizer.from_pretrained(path)


def logits_of_transformers(path, tokens):
    torch, model, tokenizer = open_transformers(path)
    if tokenizer.pad_token:  # two texts of different lengths
        tokenizer([TEXT, TEXT[:9]], padding=True)
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, -1].numpy()


def expect(path, out):
    torch, model, tokenizer = open_transformers(path)
    tokens = tokenizer(TEXT).input_ids
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, -1].tolist()
        greedy = model.generate(torch.tensor([tokens]), max_new_tokens=NEW, do_sample=False,
                                attention_mask=torch.ones(1, len(tokens), dtype=torch.long))
    text = tokenizer.decode(greedy[0, len(tokens):], skip_special_tokens=True)
    pathlib.Path(out).write_text(json.dumps({"tokens": tokens, "logits": logits, "text": text}),
                                 encoding="utf-8")


def ctranslate2(path, tokens):
    import ctranslate2
    import transformers
    out = path + ".ctranslate2"
    ctranslate2.converters.TransformersConverter(path).convert(out, force=True)
    names = transformers.AutoTokenizer.from_pretrained(path).convert_ids_to_tokens(tokens)
    values = ctranslate2.Generator(out).forward_batch([names])
    return numpy.array(values)[0, -1][:json.load(open(path + "/config.json"))["vocab_size"]]


def mlx(path, tokens):
    import mlx.core
    import mlx_lm
    mlx.core.set_default_device(mlx.core.cpu)
    model, _ = mlx_lm.load(path)
    return numpy.array(model(mlx.core.array([tokens]))[0, -1].astype(mlx.core.float32))


def onnxruntime(path, tokens):
    import onnxruntime_genai
    from onnxruntime_genai.models.builder import create_model, parse_extra_options
    out = path + ".onnx"
    what = None, path, out, "fp32", "cpu", out + ".cache"
    create_model(*what, **parse_extra_options(*what, []))
    generator = onnxruntime_genai.Generator(model := onnxruntime_genai.Model(out),
                                            onnxruntime_genai.GeneratorParams(model))
    generator.append_tokens(numpy.array([tokens], dtype=numpy.int32))
    return numpy.array(generator.get_output("logits")).reshape(-1, model_vocab(path))[-1]


def model_vocab(path):
    return json.load(open(path + "/config.json"))["vocab_size"]


def lm_eval(path, tokens):
    """The log-likelihood of the last token of the text, as one value."""
    import lm_eval.api.instance
    import lm_eval.models.huggingface
    import transformers
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    harness = lm_eval.models.huggingface.HFLM(pretrained=path, device="cpu", dtype="float32")
    return harness._loglikelihood_tokens([(("", ""), tokens[:-1], tokens[-1:])],
                                         disable_tqdm=True)[0][0]


def llama_cpp(path, tokens):
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.cpuparams.n_threads = path, 128, 1
    params.warmup = False
    answer = xllamacpp.Server(params).handle_completions(
        {"prompt": tokens, "n_predict": NEW, "temperature": 0, "top_k": 1})
    return answer["content"] if "content" in answer else answer["choices"][0]["text"]


def openvino(path, tokens):
    import openvino_genai
    pipeline = openvino_genai.LLMPipeline(path, "CPU")
    return str(pipeline.generate(TEXT, max_new_tokens=NEW, do_sample=False,
                                 apply_chat_template=False))


def mistral_rs(path, tokens):
    import mistralrs
    path = pathlib.Path(path)
    which = (mistralrs.Which.GGUF(str(path.parent), path.name) if path.suffix == ".gguf"
             else mistralrs.Which.Plain(str(path), arch=None))
    runner = mistralrs.Runner(which=which)
    answer = runner.send_completion_request(mistralrs.CompletionRequest(
        model="default", prompt=TEXT, max_tokens=NEW, temperature=0, top_k=1))
    return answer.choices[0].text


def main(reader, path, file):
    if reader == "expect":
        return expect(path, file)
    expected = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
    found = globals()[reader](path, expected["tokens"])
    if isinstance(found, str):
        result = "same text" if found == expected["text"] else f"other text: {found!r}"
    elif isinstance(found, float):
        before = logits_of_transformers(path, expected["tokens"][:-1])
        value = before[expected["tokens"][-1]] - numpy.logaddexp.reduce(before)
        result = f"{abs(found - value):.1e}"
    else:
        result = f"{numpy.abs(found - numpy.array(expected['logits'])).max():.1e}"
    print(f"{reader}: {result}")


transformers = logits_of_transformers
main(*sys.argv[1:])
