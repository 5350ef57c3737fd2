"""Commands `fourfold import` and `fourfold export`: conversion of checkpoints.

Checkpoints of transformers, timm, nanoGPT and llama2.c are imported. Models are exported to
transformers, timm, ONNX and torch.export.
"""

from collections.abc import Sequence
from pathlib import Path

from fourfold.commands.option_parser import OptionParser

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
With --format checkpoint, a checkpoint is written to the new file DIRECTORY, such as
x.ckpt, with all states of its training: a sharded checkpoint becomes one file."""
FORMATS = ("transformers", "timm", "torch-export", "onnx", "checkpoint")

# Description and names of the two arguments.
COMMANDS = {
    "import": (IMPORT, "DIRECTORY|FILE", "CHECKPOINT"),
    "export": (EXPORT, "CHECKPOINT", "DIRECTORY"),
}


def make_parser(command: str) -> OptionParser:
    """Return the parser of the options of `command`, which is "import" or "export"."""
    description, source, target = COMMANDS[command]
    parser = OptionParser(prog=f"fourfold {command}", description=description)
    parser.add_argument("source", type=Path, metavar=source)
    parser.add_argument("target", type=Path, metavar=target)
    if command == "export":
        parser.add_argument(
            "--format", default="transformers", choices=FORMATS, help="(%(default)s)"
        )
        parser.add_allow_class()
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `fourfold import` or `fourfold export`, print a report, and return the exit code.

    Raises:
        InputError: An argument or a file is invalid.
    """
    command, *arguments = argv
    options = make_parser(command).parse_args(arguments)
    from fourfold.tasks import convert  # imports torch and Lightning

    if command == "import":
        report = convert.import_checkpoint(options.source, options.target)
    else:
        classes = tuple(options.allow_class)
        report = convert.export_checkpoint(options.source, options.target, classes, options.format)
    print("\n".join(report))
    return 0
