"""Completion for shells: a script that knows the commands and their options, and starts no process.

The scripts are made from the parser. Where a URL is expected, they complete the names of files.
"""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pds.cli.codes import OK
from pds.cli.output import print_line
from pds.cli.parser import build_parser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BASH: Final = """# bash completion for pds; in ~/.bashrc: eval "$(pds completion bash)"
_pds() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local command=${{COMP_WORDS[1]}} words=
    if (( COMP_CWORD == 1 )); then
        words={commands}
    else
        if (( COMP_CWORD > 2 )); then
            case $command in {groups}) command+=" ${{COMP_WORDS[2]}}" ;; esac
        fi
        case "$command $previous" in
{values}
            *) case $current in -*) case $command in
{options}
            esac ;; *) case $command in
{verbs}
            esac ;; esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o bashdefault -o default -F _pds pds
"""
_ZSH: Final = """#compdef pds
# zsh completion for pds; in ~/.zshrc after compinit: eval "$(pds completion zsh)"
_pds() {{
    local command=$words[2] previous=$words[CURRENT-1]
    local -a items
    if (( CURRENT == 2 )); then
        items=({commands})
        _describe command items
        return
    fi
    if (( CURRENT > 3 )); then
        case $command in {groups}) command+=" $words[3]" ;; esac
    fi
    case "$command $previous" in
{values}
        *) case $words[CURRENT] in -*) case $command in
{options}
        esac ;; *) case $command in
{verbs}
        esac ;; esac ;;
    esac
    if (( $#items )); then
        _describe value items
    else
        _files
    fi
}}
if [[ $funcstack[1] == _pds ]]; then _pds "$@"; else compdef _pds pds; fi
"""


@dataclass(frozen=True)
class _Option:
    names: Sequence[str]
    values: Sequence[str]
    takes_value: bool
    description: str


@dataclass(frozen=True)
class _Command:
    """A command, or a verb of a group such as `dataset list`."""

    name: str
    description: str
    options: Sequence[_Option]
    verbs: Sequence[_Command]


def print_completion(args: argparse.Namespace, _options: dict[str, object]) -> int:
    """Print the script of a shell."""
    root = _read_parser("", build_parser())
    write = {"bash": _write_bash, "zsh": _write_zsh, "fish": _write_fish}
    print_line(write[args.shell](root).rstrip("\n"))
    return OK


def _read_parser(name: str, parser: argparse.ArgumentParser) -> _Command:
    options, verbs = [], []
    for action in parser._actions:  # noqa: SLF001 has no public name
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 as above
            choices: dict[str, argparse.ArgumentParser] = action.choices
            verbs = [_read_parser(f"{name} {verb}".strip(), choice) for verb, choice in choices.items()]
        elif action.option_strings or action.choices:
            values = tuple(map(str, action.choices or ()))
            options.append(_Option(action.option_strings, values, action.nargs != 0, action.help or ""))
    return _Command(name, parser.description or "", options, verbs)


def _walk(command: _Command) -> Iterator[_Command]:
    for verb in command.verbs:
        yield verb
        yield from _walk(verb)


def _cases(root: _Command, indent: str, item: str) -> dict[str, str]:
    """The cases that bash and zsh have in common; `item` is what one does with words."""
    values, options, verbs = [], [], []
    for command in _walk(root):
        last_word = command.name.split()[-1]
        for option in command.options:
            if option.values:
                names = option.names or [last_word]
                pattern = "|".join(_quote(f"{command.name} {name}") for name in names)
                values.append(f"{indent}{pattern}) {item.format(' '.join(option.values))} ;;")
        long_names = [name for option in command.options for name in option.names if name.startswith("--")]
        options.append(f"{indent}{_quote(command.name)}) {item.format(' '.join(long_names))} ;;")
        if command.verbs:
            words = " ".join(verb.name.split()[-1] for verb in command.verbs)
            verbs.append(f"{indent}{_quote(command.name)}) {item.format(words)} ;;")
    groups = "|".join(command.name for command in root.verbs if command.verbs)
    cases = {"values": values, "options": options, "verbs": verbs}
    return {"groups": groups} | {name: "\n".join(lines) for name, lines in cases.items()}


def _quote(text: str) -> str:
    return f'"{text}"'


def _write_bash(root: _Command) -> str:
    commands = shlex.quote(" ".join([*(verb.name for verb in root.verbs), "--help", "--version"]))
    return _BASH.format(commands=commands, **_cases(root, " " * 12, "words='{}'"))


def _write_zsh(root: _Command) -> str:
    commands = " ".join(shlex.quote(f"{verb.name}:{_plain(verb.description)}") for verb in root.verbs)
    return _ZSH.format(commands=commands, **_cases(root, " " * 8, "items=({})"))


def _write_fish(root: _Command) -> str:
    lines = ["# fish completion for pds; in config.fish: pds completion fish | source"]
    lines += [_fish_option("__fish_use_subcommand", option) for option in root.options]
    lines += [_fish_word("__fish_use_subcommand", verb) for verb in root.verbs]
    groups = " ".join(verb.name for verb in root.verbs if verb.verbs)
    for command in _walk(root):
        seen = " && ".join(f"__fish_seen_subcommand_from {part}" for part in command.name.split())
        if " " not in command.name and not command.verbs:
            # `pds dataset show` is not `pds show`.
            seen += f" && not __fish_seen_subcommand_from {groups}"
        words = " ".join(verb.name.split()[-1] for verb in command.verbs)
        lines += [_fish_option(seen, option) for option in command.options]
        lines += [_fish_word(f"{seen} && not __fish_seen_subcommand_from {words}", verb) for verb in command.verbs]
    return "\n".join(lines)


def _fish_option(condition: str, option: _Option) -> str:
    flags = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    if option.values:
        flags.append(f"{'-x' if flags else '-f'} -a {shlex.quote(' '.join(option.values))}")
    elif option.takes_value:
        flags.append("-r")
    return f"complete -c pds -n {shlex.quote(condition)} {' '.join(flags)} -d {shlex.quote(_plain(option.description))}"


def _fish_word(condition: str, verb: _Command) -> str:
    name = verb.name.split()[-1]
    return f"complete -c pds -f -n {shlex.quote(condition)} -a {name} -d {shlex.quote(_plain(verb.description))}"


def _plain(text: str) -> str:
    """A description on one line, without what shells would read."""
    return re.sub(r"[:`'\"$\\\[\]]", "", text)
