from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fourfold.callbacks.preemption import ASK_EVERY, Preemption


@pytest.mark.parametrize("accumulate", range(1, 41))
def test_ranks_are_asked_whatever_the_accumulation(accumulate: int, tmp_path: Path) -> None:
    asked = []
    state = SimpleNamespace(batch=0)
    trainer: Any = SimpleNamespace(
        world_size=2,
        is_global_zero=False,
        global_step=0,
        fit_loop=SimpleNamespace(
            epoch_loop=SimpleNamespace(
                _should_accumulate=lambda: (state.batch + 1) % accumulate != 0,
                _should_check_val_fx=lambda fetcher: False,
                _skip_next_val=False,
                batch_progress=SimpleNamespace(is_last_batch=False),
            ),
            _data_fetcher=object(),
        ),
        max_steps=-1,
        max_epochs=-1,
        current_epoch=0,
        strategy=SimpleNamespace(
            reduce_boolean_decision=lambda decision, all: bool(asked.append(state.batch))
        ),
    )
    callback = Preemption(tmp_path / "last.ckpt")
    for state.batch in range(ASK_EVERY * accumulate):
        trainer.global_step = (state.batch + 1) // accumulate
        callback.on_train_batch_end(trainer, None, None, None, state.batch)  # type: ignore[arg-type]
    assert len(asked) == 1  # once in so many optimizer steps
