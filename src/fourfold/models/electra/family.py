"""Family of ELECTRA: generators, discriminators and their pre-training (Clark et al. 2020)."""

from fourfold.families import Family, with_configs

# Clark et al. 2020, Table 6. The released small generator is as wide as its discriminator.
SMALL = {"d_model": 256, "n_layers": 12, "n_heads": 4, "d_ff": 1024, "embedding_size": 128}
BASE = {"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072, "embedding_size": 768}
LARGE = {"d_model": 1024, "n_layers": 24, "n_heads": 16, "d_ff": 4096, "embedding_size": 1024}
MODELS = ("ElectraGenerator", "ElectraDiscriminator", "Electra")

FAMILY = Family(
    name="electra",
    models=with_configs(__package__, dict.fromkeys(MODELS, "model")),
    tasks={"ReplacedTokenDetection": f"{__package__}.task"},
    sizes={
        "electra-small-generator": ("ElectraGenerator", SMALL),
        "electra-base-generator": ("ElectraGenerator", {**SMALL, "embedding_size": 768}),
        "electra-large-generator": (
            "ElectraGenerator",
            {**SMALL, "n_layers": 24, "embedding_size": 1024},
        ),
        "electra-small-discriminator": ("ElectraDiscriminator", SMALL),
        "electra-base-discriminator": ("ElectraDiscriminator", BASE),
        "electra-large-discriminator": ("ElectraDiscriminator", LARGE),
    },
    architectures={"electra": f"{__package__}.hub"},
    token_templates=dict.fromkeys(
        MODELS, ("{bos} $A {eos}", "{bos}:0 $A:0 {eos}:0 {between}$B:1 {eos}:1")
    ),
)
