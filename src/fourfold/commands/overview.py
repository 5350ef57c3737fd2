"""Help that answers at once: what there is, and the options one needs first."""

from fourfold import __version__

GENERAL = f"""fourfold {__version__}: one attention core, four transformers

usage: fourfold COMMAND [options]        (fourfold COMMAND --help says more)

train and measure
  fit        train a model; continues by itself after an interruption
  validate   measure a checkpoint on the validation split
  test       measure a checkpoint on the test split: a table, and metrics.json
  predict    write the model's output for the test split to a file
  seeds      fit and test with several seeds: mean, standard deviation and best
  plan       parameters, FLOPs and memory of a recipe, before running it
  replay     where a loss that is not finite comes from
  bench      time and memory of all four families against their peers, on this machine
  reproduce  a paper's table with our number beside each of its own
  diff       two recipes, only what differs, with their conventions resolved

use a checkpoint: lines in, lines out
  translate  one sentence a line to its translation
  generate   one prompt a line to its continuation
  fill       one line with [MASK] or <mask> to the line filled in
  classify   one image file, or one sentence, a line to its class and probability

exchange weights with transformers
  import     a directory of transformers to a checkpoint
  export     a checkpoint to a directory of transformers

for the shell
  completion  eval "$(fourfold completion bash)" in ~/.bashrc, or zsh in ~/.zshrc

Exit codes: 0 done, 1 training cannot go on, 2 the input was wrong (one sentence on stderr says
how), 75 stopped by SIGTERM, or 130 by Ctrl-C, with everything saved: run the same command again
to go on."""

FIT = """usage: fourfold fit --config FILE [--config FILE ...] [--KEY VALUE ...]

Trains a model. Every key of a config file is an option, and what comes later on the line wins:
  fourfold fit --config configs/gpt2/tiny.yaml --trainer.max_steps 500 --model.config.d_model 128

what is trained
  --config FILE              YAML with model, data, trainer; several are merged from left to right
  --model CLASS, --data CLASS            fourfold.tasks.*, fourfold.data.*
  --model.KEY, --data.KEY, --trainer.KEY their arguments; a later list replaces, KEY+ appends
  --seed_everything N        weights, dropout and order of the data (default 0)
  --compile true             torch.compile each block: pays on a GPU, after a slow first step
  --fp32_products high       TF32 for fp32 matrix products on a GPU (default highest: fp32)

where it goes, and going on after an interruption
  --run_dir DIR              default trainer.default_root_dir, or runs/FOLDER/STEM of the first
                             config file
  --resume auto|must|never   auto: continue DIR/checkpoints/last.ckpt where there is one (default);
                             must: error without one; never: error if there is one
  --ckpt_path FILE           continue this checkpoint in a new run directory

checkpoints (DIR/checkpoints: last.ckpt, best.ckpt, average.ckpt)
  --checkpoint.monitor NAME  what "best" means: default the first of val/bleu, val/top1, val/loss
  --checkpoint.mode min|max  default by the metric's name
  --checkpoint.keep_best K   how many of the best to keep (default 1)
  --checkpoint.every_n_steps N           also save last.ckpt inside epochs (default 1000)
  --average_last N           average the last N snapshots at the end (Vaswani et al. 2017, 6.1)
  --average_every_n_steps N  a snapshot every N steps instead of every epoch
  --ema_decay D              keep an exponential moving average, validate and save it

output
  --wandb off|offline|online|auto        Weights & Biases (default off; auto: online with a key)
  --wandb_project P, --wandb_name N      default: fourfold, the run directory's name
  --tensorboard true|false   default true where tensorboard is installed
  --progress_seconds S       a line this often where there is no terminal (default 10)

`fourfold fit --help-all` lists all options of the Trainer; `--model.help CLASS` those of a task;
`--print_config` shows the merged config and stops."""


SEEDS = """usage: fourfold seeds --run_dir DIR [--seeds 0,1,2] --config FILE [--KEY VALUE ...]

Trains and tests the same recipe once with each seed, in DIR/seed_N, and prints mean, standard
deviation (n - 1), best and each seed's value of every metric; DIR/seeds.json holds the same. A
command that was stopped goes on where it stood; seeds that are done are not done again.

  --seeds LIST    whole numbers with commas (default 0,1,2); each becomes --seed_everything
  --run_dir DIR   must be given
  --config, --KEY as for fit"""


PLAN = """usage: fourfold plan --config FILE [--config FILE ...] [--KEY VALUE ...] [options]

Says what a recipe costs before it is run: exact parameters, FLOPs, memory on one device, and the
micro-batch and accumulation that keep its global batch.

  --config FILE   as for fit; --KEY VALUE too, such as --trainer.precision bf16-mixed
  --devices N     how many devices share the batch, on all nodes; default: what the trainer says
  --memory GIB    memory of one device; default: as much as it takes
  --length T      tokens of a sequence; default: what the data say, 25 for sentence pairs

One multiply-add is two FLOPs; attention is counted in full, also where it is causal. Memory is an
estimate for a fused attention kernel: what autograd keeps, not the allocator's fragments."""


REPLAY = """usage: fourfold replay RUN_DIR/nonfinite_step=N.pt [--device D] [--precision P]

A training whose loss is not a finite number stops before the step, with the batch and the weights
in this file. Here the batch is run once more, with the same dropout, in the same precision and then
in fp32, and the first module whose output is not finite is named.

  --device D      auto, cpu, cuda or cuda:N; default: where it happened
  --precision P   such as 32-true or bf16-mixed; default: that of the training"""

BENCH = """usage: fourfold bench [--size SIZE] [--work WORK ...] [--out DIR] [options]

Measures our families against their peers on this machine: the same shapes and precision, all ways
in turns in one run, and what is shown is the median [least, greatest] and the same of each peer's
time by ours, round by round. A step's FLOPs are set against a matrix product of the same run.

  --size SIZE     laptop (default), wide, gpu, or tiny, which only shows that everything runs
  --family NAME ...   causal_lm, masked_lm, vit, encoder_decoder; default: all that the size has
  --work WORK ... train, evaluate, memory, greedy, beam (default: these), growth, and sentences:
                  training on Multi30k and SST-2 under $FOURFOLD_DATA, with padding as it falls
  --growth AXIS ...   length, vocabulary, batch: how a training step grows until it does not fit
  --peers NAME ...    transformers, timm, nanogpt, x_transformers, torch (default: all), or none;
                  one that is not installed is left out and named
  --nanogpt FILE  nanoGPT's model.py, which is no package
  --precision P   bf16 (default: autocast in training, weights in decoding) or fp32
  --compiled      each way also compiled, against ours compiled
  --rounds N      how often each way is measured (default 7)
  --dropout P     of all that have it (default 0)
  --budget S      seconds that memory or a point of a growth may take (default 300)
  --threads N, --device D   of the CPU; auto, cpu, cuda or cuda:N
  --out DIR       bench.md, bench.json (every measurement) and bench.png

For a processor with other work, give it a core of its own: taskset -c 1 fourfold bench ..."""

REPRODUCE = """usage: fourfold reproduce TABLE ... [--tier TIER] [options]
       fourfold reproduce --list [TABLE ...]

Obtains the numbers of a published table and prints them beside the paper's: ours (mean and standard
deviation over seeds), how obtained, deviation, and why where the cause is known. What was not run
is shown as not run. TABLE is PAPER/TABLE such as vaswani2017/table3, a PAPER, or all.

  --list            every table, its tiers, and how many cells of each are in the results
  --tier TIER       exact (default: no training: parameters, FLOPs, formulas, shares of masks),
                    measured (layers by the clock of this machine), weights (official ones), laptop,
                    single-gpu, or paper (the published recipe)
  --rows ROW ...    only these rows are run; default: all that the tier has
  --seeds N         how many: seeds 0 to N - 1 for each row (default 1; `fourfold seeds` takes a
                    list); of the tier measured, rounds
  --budget TIME     start no run that is not expected to end in this time: 90s, 30m, 2h
  --machine FILE    where they are trained: a config such as configs/trainer/ddp.yaml. A recipe's
                    batch is that of all devices: it is cut for those that FILE has
  --memory GiB      of one device: the batch is cut until it fits, gradients of its parts are added
  --commands        show the trainings as commands, for a cluster, and run none; those of a row are
                    in order, and what starts from others' weights comes after them
  --out DIR         where DIR/PAPER/TABLE/TIER gets table.md, table.csv, table.json, table.png and
                    provenance.json (default results)
  --runs DIR        where the trainings are (default runs/reproduce)

Killed at any time, the same command goes on where it stood: rows that are done are not run again,
and a training that was stopped ends with the same weights. What the tables under --out have on
record of their runs counts as done, too, wherever that was: another --out has nothing on record.
With another config, options, data or start than now it was another run: it is named and done again,
and where its directory still is that has to be removed first. A run that fails keeps no other from
being run but those that start from it. The table is written when all is done or stopped, and after
a row once a minute has gone by."""

DIFF = """usage: fourfold diff A B [C ...]
       fourfold diff --list

Shows in what two recipes or more differ, and what their numbers come to where the same number means
different things: alpha of a length penalty, epsilon of label smoothing, weight decay, learning rate
and batch. A recipe is a card, such as vaswani2017_base, tensor2tensor_base, fairseq_big, read from
the file that it names, or a config file of this package, such as configs/gpt2/small.yaml.

  --list    the cards there are, with their sources"""

IMPORT = """usage: fourfold import DIRECTORY|FILE CHECKPOINT

Makes a fourfold checkpoint of a directory of transformers (config.json beside model.safetensors or
pytorch_model.bin, with its tokenizer or preprocessor_config.json): BERT, RoBERTa, DistilBERT, GPT,
GPT-2, ViT, DeiT, CLIP, Marian, Pegasus, BART, T5; or of a ViT or DeiT of timm, a directory or one
file; or of nanoGPT's ckpt.pt or minGPT's model.pt. What had to be assumed is said. The checkpoint
works with translate, generate, fill, classify, export and fourfold.load. It is a new file, as
x.ckpt."""

EXPORT = """usage: fourfold export CHECKPOINT [timm:]DIRECTORY

Makes a new directory that transformers' AutoModel*.from_pretrained reads, of a checkpoint file or a
run directory (its best.ckpt, else average.ckpt, else last.ckpt), with the tokenizer or the
preprocessing of images. What was imported goes back to where it came from, byte for byte; another
model to the architecture that can say all of its config, and if there is none a sentence says why.
With timm: in front of the directory, a ViT or DeiT is written for timm's
create_model("local-dir:DIRECTORY", pretrained=True)."""


def _evaluation(command: str, does: str, more: str = "") -> str:
    return f"""usage: fourfold {command} --config FILE [--ckpt_path WHICH] [--KEY VALUE ...]

{does}

  --config FILE              as for fit, or the config.yaml of a run directory
  --ckpt_path WHICH          best, last, average or a file; default: the run directory's best, else
                             its average, else its last
  --run_dir DIR              default trainer.default_root_dir, or runs/FOLDER/STEM of the first
                             config file
  --KEY VALUE                any key of the config, such as --model.init_args.beam 8
{more}
`fourfold {command} --help-all` lists all options."""


# The inference commands answer for themselves: their parsers are light.
OVERVIEWS = {
    "fit": FIT,
    "seeds": SEEDS,
    "plan": PLAN,
    "replay": REPLAY,
    "bench": BENCH,
    "reproduce": REPRODUCE,
    "diff": DIFF,
    "import": IMPORT,
    "export": EXPORT,
    "validate": _evaluation(
        "validate", "Measures a checkpoint on the validation split and prints a table."
    ),
    "test": _evaluation(
        "test",
        "Measures a checkpoint on the test split, prints a table and writes RUN_DIR/metrics.json.",
    ),
    "predict": _evaluation(
        "predict",
        "Writes the model's output for the test split into the run directory.",
        """
files written
  predictions.txt            texts, one line a row of the split, in its order
  predictions.csv            of classifiers: row, class number and name, probability; or a value
  predictions.json           of questions: for each id its best answers with their scores
  predictions.pt             of others: a list, for each batch its tensor, or its tensors
""",
    ),
}


def overview() -> str:
    """The commands, grouped by what one wants."""
    return GENERAL
