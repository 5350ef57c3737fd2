"""Family of encoder-decoders: the Transformer of 2017, Marian, BART, Pegasus, T5, captioning."""

from fourfold.families import BASE, LARGE, Family, with_configs

COMPOSITE = ("CompositeEncoderDecoder", "ImageToTextConfig", "TextToTextConfig")

FAMILY = Family(
    name="encoder_decoder",
    models={
        **with_configs(__package__, {"EncoderDecoder": "model", "T5": "t5"}),
        **dict.fromkeys(COMPOSITE, f"{__package__}.composite"),
    },
    tasks={
        **dict.fromkeys(
            ("Translation", "CompositeTranslation", "TextToText"), f"{__package__}.translation_task"
        ),
        "Captioning": f"{__package__}.captioning_task",
    },
    sizes={
        "transformer_base": ("EncoderDecoder", {}),
        "transformer_big": (
            "EncoderDecoder",
            {"d_model": 1024, "n_heads": 16, "d_ff": 4096, "dropout": 0.3},
        ),
        "t5-small": ("T5", {}),
        "t5-base": ("T5", BASE),
        "t5-large": ("T5", LARGE),
    },
    architectures={
        **dict.fromkeys(("marian", "pegasus", "bart"), f"{__package__}.hub"),
        "t5": f"{__package__}.hub_t5",
    },
    token_templates={"Seq2Seq": ("$A {eos}", None)},
    graphs={"Seq2Seq": "fourfold.hub.graphs:seq2seq_graphs"},
    views={"Seq2Seq": "fourfold.explorer.image_views:make_seq2seq_view"},
)
