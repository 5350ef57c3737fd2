"""`fourfold completion`: a small script for the shell; it asks nobody while one types.

What jsonargparse offers for this is a script of 78 MB, or seconds of waiting at each TAB.
"""

import re
from collections.abc import Sequence

from fourfold.commands.inference import VERBS, make_parser
from fourfold.commands.overview import OVERVIEWS
from fourfold.core.errors import InputError

SCRIPT = """\
_fourfold() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} options
    COMPREPLY=()
    if [[ $COMP_CWORD == 1 ]]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$word"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    fi
}}
complete -o default -F _fourfold fourfold"""


def main(argv: Sequence[str]) -> int:
    """Print the script for bash, or for zsh with its bash compatibility.

    Raises:
        InputError: Another shell.
    """
    if list(argv) not in (["bash"], ["zsh"]):
        raise InputError(
            "say for which shell: fourfold completion bash, or fourfold completion zsh"
        )
    if argv[0] == "zsh":
        print("autoload -Uz bashcompinit && bashcompinit")
    options = {command: sorted(set(options_of(command))) for command in [*OVERVIEWS, *VERBS]}
    cases = "\n".join(f'        {name}) options="{" ".join(o)}" ;;' for name, o in options.items())
    commands = " ".join([*options, "completion"])
    print(SCRIPT.format(commands=commands, cases=cases))
    return 0


def options_of(command: str) -> list[str]:
    """The options of a command that its help shows."""
    if command in VERBS:
        known = make_parser(command)._option_string_actions
        return [option for option in known if option.startswith("--")]
    # --model.KEY stands for many: the beginning alone is offered.
    return [found.removesuffix("KEY") for found in re.findall(r"--[\w.-]+\w", OVERVIEWS[command])]
