"""Help texts of `fourfold` and of six commands whose parsers need torch, which is slow to import.

The other commands print the help of their `OptionParser`.
"""

OVERVIEW = """fourfold {version}: one attention core, four transformers

usage: fourfold COMMAND [options]        (fourfold COMMAND --help lists the options)

{commands}

--traceback, or the environment variable FOURFOLD_DEBUG=1, shows the traceback of input errors.

Exit codes: 0 success, 1 training cannot continue, 2 invalid input or a full disk (one line on
stderr), 75 stopped by SIGTERM and 130 by Ctrl-C with everything saved, 75 also if the disk became
full during training: run the same command again to resume."""

FIT = """usage: fourfold fit --config FILE|NAME [--config ...] [--KEY VALUE ...]

Train a model. Every key of a config is an option; later configs and options override earlier ones:
  fourfold fit --config gpt2/tiny --trainer.max_steps 500 --model.config.d_model 128

  --config FILE|NAME         YAML file, or a recipe that `fourfold recipes` lists
  --model CLASS, --data CLASS            classes of fourfold.tasks, fourfold.data or your own module
  --model.KEY, --data.KEY, --trainer.KEY their arguments; KEY+ appends to a list
  --seed_everything N        seed of weights, dropout and order of the data (default 0)
  --trainer.precision P      Lightning's values, or auto: bf16-mixed if it is fast here, or 32-true
  --run_dir DIR              default trainer.default_root_dir, or runs/FOLDER/NAME for a first
                             config FOLDER/NAME.yaml; without --config, --model and --data, the
                             training in DIR continues with its config.yaml
  --resume auto|must|never   auto (default) resumes from DIR/checkpoints/last.ckpt if it exists;
                             must requires it; never requires that it does not exist
  --ckpt_path FILE           resume from this checkpoint in a new run directory
  --checkpoint.monitor NAME  metric of best.ckpt: default the first of val/bleu, val/top1, val/loss
  --checkpoint.every_n_steps N           steps between saves within an epoch (default 1000)
  --average_last_checkpoints N           average the last N snapshots (Vaswani et al. 2017, 6.1)
  --ema_decay D              exponential moving average of the weights, validated and saved
  --wandb off|offline|online|auto        Weights & Biases (default off; auto: online with a key)

`fourfold fit --help-all` lists all options, `--model.help CLASS` and `--data.help CLASS` those of a
task and of a DataModule, and `--print_config` prints the merged config."""

PLAN = """usage: fourfold plan --config FILE|NAME [--config ...] [--KEY VALUE ...] [options]
       fourfold plan --run_dir RUN [--KEY VALUE ...] [options]

Print the cost of a recipe before it is run: exact parameters, FLOPs, memory on one device, and the
micro-batch and accumulation that keep its global batch.

  --config FILE|NAME  as for fit; also --KEY VALUE, such as --trainer.precision bf16-mixed or auto
  --run_dir RUN       use the config of a run directory
  --devices N         devices of all nodes that share the batch; default: those of the trainer
  --memory GIB        memory of one device; default: unlimited

One multiply-add counts as two FLOPs, and causal attention is counted in full. Memory is estimated
for a fused attention kernel and leaves out fragmentation. Sentences of pairs have 25 tokens."""


EVALUATION = """usage: fourfold COMMAND --run_dir RUN [--ckpt_path WHICH] [--KEY VALUE ...]
       fourfold COMMAND --config FILE|NAME [--config ...] [--ckpt_path WHICH] [--KEY VALUE ...]

fourfold validate: evaluate a checkpoint on the validation split and print a table.
fourfold test: evaluate a checkpoint on the test split, print a table and write RUN/metrics.json.
fourfold predict: write the model's outputs for the test split into the run directory, as
  predictions.txt      texts, one line per row of the split
  predictions.csv      of classifiers: row, class number and name, probability; or a value;
                       also the file, the true class and, of texts, the text
  predictions.json     of question answering: the best answers with their scores, by id
  predictions.pt       otherwise: a list with the tensors of each batch
`fourfold predict --run_dir RUN --input FILE.csv` answers a table; --help beside --input says how.

  --run_dir RUN        run directory; its config.yaml is used unless --config is given
  --config FILE|NAME   as for fit
  --ckpt_path WHICH    best, last, average or a file; default: the run directory's best, otherwise
                       its average, otherwise its last
  --KEY VALUE          any key of the config, such as --data.batch_size 8

`fourfold test --help-all` lists all options."""

TUNE = """usage: fourfold tune lr_find --config FILE|NAME [--tune.NAME VALUE ...] [--KEY VALUE ...]
       fourfold tune scale_batch_size --config FILE|NAME [...]

Call a method of lightning.pytorch.tuner.Tuner in place of training; its arguments are --tune.NAME.
RUN/tune/METHOD.yaml has the result, a config for `fourfold fit`, and RUN/tune/lr_find.png the
losses. A training in RUN is neither read nor changed. All other options are those of fit."""

HELP_TEXTS = {
    "fit": FIT,
    "plan": PLAN,
    "tune": TUNE,
    **{name: EVALUATION.replace("COMMAND", name) for name in ("validate", "test", "predict")},
}
