"""Commands `fourfold import`, `fourfold export` and `fourfold push`: conversion of checkpoints.

Checkpoints of transformers, timm, nanoGPT and llama2.c are imported. Models are exported to
transformers, timm, ONNX and torch.export, and uploaded to the Hugging Face hub.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fourfold.commands.option_parser import OptionParser
from fourfold.errors import InputError

IMPORT = """\
Write a fourfold checkpoint, a new file such as x.ckpt, from
  a directory of transformers: config.json beside model.safetensors or
    pytorch_model.bin, with tokenizer or preprocessor_config.json, of BERT, RoBERTa,
    DistilBERT, ModernBERT, GPT, GPT-2, Llama, Mistral, Qwen2, Qwen3, OLMo 2,
    Gemma 2, Gemma 3 (text), ViT, DeiT, DINOv2, CLIP, SigLIP, Marian, Pegasus, BART or
    T5;
  a ViT, DeiT or DeiT III of timm, a directory or one file;
  nanoGPT's ckpt.pt;
  a .bin file of llama2.c (version 0), beside tokN.bin (N tokens) or tokenizer.bin.
Assumptions about missing settings are printed."""

EXPORT = """\
Write a new directory that AutoModel*.from_pretrained of transformers reads, with the
tokenizer or the image preprocessing. The source is a checkpoint file or a run directory,
whose best.ckpt is used, otherwise average.ckpt, otherwise last.ckpt. Imported models are
written in their original architecture, byte for byte. With --format timm, a ViT or DeiT
is written for timm.create_model("local-dir:DIRECTORY", pretrained=True).
The formats torch-export and onnx are graphs that run without fourfold, with any batch
size and length, and with the key-value cache of a decoder. They are compared with the
model, and export.json names their inputs and outputs.
--verify reads the directory with transformers or with the runtime of the graphs, compares
token ids, images, outputs and greedy search with fourfold, and writes the differences to
verification.json. README.md is a model card with what the run records.
With --format checkpoint, a checkpoint is written to the new file DIRECTORY, such as
x.ckpt, with all states of its training: a sharded checkpoint becomes one file."""
PUSH = """\
Export a model as `fourfold export` does, and upload the directory with its model card
README.md to the Hugging Face hub, into the repository hf://OWNER/NAME, which is created
if it does not exist. The token is that of `hf auth login`, or HF_TOKEN. With --verify, a
directory that differs from the model is not uploaded."""
# Files of exports, and of tokenizers beside them, which `push` deletes from a repository if it does
# not write them: they describe other weights.
EXPORTED = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "fourfold.json"),
    *(
        "model*.safetensors*",
        "pytorch_model*.bin*",
        "*.onnx",
        "*.onnx.data",
        "*.pt2",
        "export.json",
    ),
    *("tokenizer*.json", "vocab.json", "vocab.txt", "merges.txt", "special_tokens_map.json"),
    *("added_tokens.json", "source.spm", "target.spm", "spiece.model", "tokenizer.model"),
    *("modules.json", "*sentence_*.json", "[0-9]_*/config.json", "verification.json"),
)
FORMATS = ("transformers", "timm", "torch-export", "onnx", "checkpoint")

# Description and names of the two arguments.
COMMANDS = {
    "import": (IMPORT, "DIRECTORY|FILE", "CHECKPOINT"),
    "export": (EXPORT, "CHECKPOINT", "DIRECTORY"),
    "push": (PUSH, "CHECKPOINT", "hf://OWNER/NAME"),
}


def make_parser(command: str) -> OptionParser:
    """Return the parser of the options of `command`, a key of `COMMANDS`."""
    description, source, target = COMMANDS[command]
    parser = OptionParser(prog=f"fourfold {command}", description=description)
    add = parser.add_argument
    add("source", type=Path, metavar=source)
    add("target", type=str if command == "push" else Path, metavar=target)
    if command != "import":
        formats = FORMATS[:-1] if command == "push" else FORMATS  # a checkpoint is a file
        add("--format", default="transformers", choices=formats, help="(%(default)s)")
        add("--verify", action="store_true", help="compare the directory with the model")
        parser.add_allow_class()
    if command == "push":
        add("--private", action="store_true", help="the repository must be, or becomes, private")
        add("--revision", help="branch, which is created if it does not exist (main)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command that is the first argument, print a report, and return the exit code.

    Raises:
        InputError: An argument or a file is invalid, or an exported directory differs from the
            model.
    """
    command, *arguments = argv
    options = make_parser(command).parse_args(arguments)
    from fourfold.tasks import convert  # imports torch and Lightning

    if command == "import":
        report = convert.import_checkpoint(options.source, options.target)
    elif command == "push":
        report = _push(options)
    else:
        report = _export(options, options.target, options.target.resolve().name)
    print("\n".join(report))
    return 0


def _export(options: Namespace, target: Path, path: str) -> list[str]:
    """Export a model with its model card, which names `path`; return lines about it.

    If the comparison with the model fails, the directory remains, and InputError is raised.
    """
    from fourfold.commands.model_card import write_card
    from fourfold.hub.verification import check_runtime, verify
    from fourfold.tasks.convert import export_checkpoint

    report: dict[str, Any] = {}
    if options.verify:
        check_runtime(options.format)

    def finish(model: Any, folder: Path) -> None:
        if options.verify:
            report.update(verify(model, folder, options.format))
        write_card(model, folder, options.source, path, format=options.format, report=report)

    classes = tuple(options.allow_class)
    lines = export_checkpoint(options.source, target, classes, options.format, finish)
    if report.get("failure"):
        raise InputError(report["failure"], file=options.target)
    return [*lines, f"compared: {', '.join(report['compared'])}"] if report else lines


def _push(options: Namespace) -> list[str]:
    """Export a model to a temporary directory, and upload it to the Hugging Face hub."""
    from huggingface_hub import HfApi, get_token

    from fourfold.hub.directory import HUB_NAME

    match = HUB_NAME.fullmatch(options.target)
    if match is None or match[1] is None:
        raise InputError(f"must be hf://OWNER/NAME, got {options.target}", option="the repository")
    if get_token() is None:
        raise InputError("needs a token: `hf auth login` or HF_TOKEN", option=options.target)
    name, api = match[2], HfApi()
    with TemporaryDirectory() as folder:
        target = Path(folder, "export")
        lines = _export(options, target, options.target)
        try:
            api.create_repo(name, private=options.private or None, exist_ok=True)
            if options.private and not api.repo_info(name).private:
                raise InputError("needs a private repository, but it is public", option="--private")
            if options.revision:
                api.create_branch(name, branch=options.revision, exist_ok=True)
            where = {"repo_id": name, "revision": options.revision}
            api.upload_folder(folder_path=target, delete_patterns=list(EXPORTED), **where)
        except Exception as error:  # huggingface_hub raises many classes
            message = f"the upload failed: {' '.join(str(error).split())[:300]}"
            raise InputError(message, file=options.target) from error
    return [line.replace(str(target), options.target) for line in lines]
