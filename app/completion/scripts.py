"""The script of each shell, made of the table of places.

bash and zsh share the tables (`case` over the command and the option) and the walk over the words
before the cursor; fish has a `complete` line for each word. All three ask `stoker __complete`, the
very program that stands on the command line, for names of servers, models and profiles.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from app.completion.answers import COMMAND
from app.completion.table import CommandPlace, Item, Values

_WALK = """\
# Sets `at`, the words of the command so far, and `option`, an option whose value is being typed.
_stoker_walk() {
    local word
    at= option=
    for word in "$@"; do
        if [[ -n $option ]]; then
            option=
        elif [[ $word == --*=* ]]; then
            :
        elif [[ $word == -* ]]; then
            if _stoker_values "$at" "$word"; then option=$word; fi
        elif [[ -z $at ]]; then
            at=$word
        elif _stoker_words "$at $word"; then
            at="$at $word"
        fi
    done
}

# Sets `items` (WORD:MEANING), `asked` (what only stoker knows) and `files` for the place reached.
_stoker_look() {
    items=() asked= files=
    if [[ -n $option ]]; then
        _stoker_values "$at" "$option"
    elif [[ $1 == -* ]]; then
        _stoker_options "$at"
    else
        _stoker_words "$at"
        if [[ ${#items[@]} == 0 && -z $asked$files ]]; then _stoker_options "$at"; fi
    fi
    return 0
}
"""

_BASH = """\
_stoker() {
    local line=${COMP_LINE:0:COMP_POINT} last=${COMP_WORDS[COMP_CWORD]} cur= head=
    local at option asked files word rest
    local -a items before
    read -ra before <<< "$line"
    if [[ $line != *[[:space:]] ]]; then
        cur=${before[${#before[@]}-1]}
        unset "before[${#before[@]}-1]"
    fi
    _stoker_walk "${before[@]:1}"
    if [[ -z $option && $cur == --*=* ]]; then
        option=${cur%%=*} cur=${cur#*=}
    fi
    # Of a:b bash replaces what follows the colon only; of @b all of it.
    [[ $last == [@:=] ]] && last=
    [[ $cur == *"$last" ]] && head=${cur%"$last"} head=${head%@}
    _stoker_look "$cur"
    if [[ -n $asked ]]; then
        while IFS=$'\\t' read -r word rest; do
            items+=("$word:")
        done < <("${1/#\\~/$HOME}" @COMMAND@ $asked 2>/dev/null)
    fi
    COMPREPLY=()
    for word in "${items[@]}"; do
        word=${word%%:*}
        [[ $word == "$cur"* ]] || continue
        word=${word#"$head"}
        [[ $word == *[!a-zA-Z0-9@._/+-]* ]] && word=$(printf %q "$word")
        COMPREPLY+=("$word")
    done
    if [[ -n $files ]]; then
        # With this, bash quotes what it puts in; the names above are quoted already.
        (( ${#COMPREPLY[@]} )) || compopt -o filenames 2>/dev/null
        while IFS= read -r word; do
            COMPREPLY+=("${word#"$head"}")
        done < <(compgen -f -- "$cur")
    fi
    return 0
}
complete -F _stoker stoker
"""

_ZSH = """\
_stoker() {
    local at option asked files word rest
    local -a items before
    before=("${(@)words[2,CURRENT-1]}")
    _stoker_walk "${before[@]}"
    if [[ -z $option && $PREFIX == --*=* ]]; then
        option=${PREFIX%%=*}
        compset -P '*='
    fi
    _stoker_look "$PREFIX"
    if [[ -n $asked ]]; then
        while IFS=$'\\t' read -r word rest; do
            items+=("${word//:/\\\\:}:$rest")
        done < <("${words[1]/#\\~/$HOME}" @COMMAND@ ${=asked} 2>/dev/null)
    fi
    local result=1
    if (( ${#items} )); then
        _describe -t stoker 'stoker' items && result=0
    fi
    if [[ -n $files ]]; then
        _files && result=0
    fi
    return $result
}
if [[ ${funcstack[1]-} == _stoker ]]; then
    _stoker "$@"
else
    (( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit }
    compdef _stoker stoker
fi
"""

_FISH = """\
function __stoker_at --description 'Whether the words so far lead to this command'
    set -l at
    set -l is_value 0
    for word in (commandline -opc)[2..-1]
        if test $is_value = 1
            set is_value 0
            continue
        end
        switch $word
            case '--*=*'
            case '-*'
                if contains -- (string trim "$at $word") $__stoker_valued
                    set is_value 1
                end
            case '*'
                if test -z "$at"
                    set at $word
                else if contains -- "$at $word" $__stoker_places
                    set at "$at $word"
                end
        end
    end
    test "$at" = "$argv"
end

function __stoker_ask --description 'What only stoker knows: servers, models, profiles'
    set -l words (commandline -opc)
    $words[1] @COMMAND@ $argv 2>/dev/null
end

complete -c stoker -f
"""


def bash_script(places: Iterable[CommandPlace]) -> str:
    """For `~/.local/share/bash-completion/completions/stoker`, or to be sourced."""
    return f"{_tables(tuple(places))}\n{_WALK}\n{_with_command(_BASH)}"


def zsh_script(places: Iterable[CommandPlace]) -> str:
    """For a file `_stoker` in $fpath, or to be sourced; needs no bashcompinit."""
    return f"#compdef stoker\n{_tables(tuple(places))}\n{_WALK}\n{_with_command(_ZSH)}"


def fish_script(places: Iterable[CommandPlace]) -> str:
    """What fish reads, the text of `~/.config/fish/completions/stoker.fish`."""
    found = tuple(places)
    inner = [" ".join(place.path) for place in found if len(place.path) > 1]
    valued = [
        " ".join((*place.path, spelling))
        for place in found
        for option in place.options
        if option.values is not None
        for spelling in filter(None, (option.name, option.short))
    ]
    lines = [f"set -g __stoker_places {' '.join(map(_fish_word, inner))}"]
    lines.append(f"set -g __stoker_valued {' '.join(map(_fish_word, valued))}")
    for place in found:
        lines += _fish_lines(place)
    return _with_command(_FISH) + "\n".join(lines) + "\n"


def _with_command(script: str) -> str:
    return script.replace("@COMMAND@", COMMAND)


def _tables(places: tuple[CommandPlace, ...]) -> str:
    words = [(" ".join(place.path), _assignments(place.words)) for place in places]
    options = [
        (
            " ".join(place.path),
            _items(Item(option.name, option.meaning) for option in place.options),
        )
        for place in places
    ]
    values = [
        (f"{' '.join(place.path)} {spelling}", _assignments(option.values))
        for place in places
        for option in place.options
        if option.values is not None
        for spelling in filter(None, (option.name, option.short))
    ]
    return "\n".join(
        (
            _function("_stoker_words", '"$1"', words),
            _function("_stoker_options", '"$1"', options),
            _function("_stoker_values", '"$1 $2"', values),
        )
    )


def _function(name: str, subject: str, cases: Iterable[tuple[str, str]]) -> str:
    lines = [f"    {shlex.quote(key)}) {body} ;;" for key, body in cases]
    return "\n".join((f"{name}() {{", f"    case {subject} in", *lines,
                      "    *) return 1 ;;", "    esac", "}"))  # fmt: skip


def _assignments(values: Values) -> str:
    parts = [_items(values.items)]
    if values.asked:
        parts.append(f"asked={shlex.quote(' '.join(values.asked))}")
    if values.has_files:
        parts.append("files=1")
    return " ".join(parts)


def _items(items: Iterable[Item]) -> str:
    quoted = (shlex.quote(f"{item.word}:{item.meaning}".rstrip(":")) for item in items)
    return f"items=({' '.join(quoted)})"


def _fish_lines(place: CommandPlace) -> Iterator[str]:
    condition = _fish_word(" ".join(("__stoker_at", *place.path)))
    head = f"complete -c stoker -n {condition}"
    for item in place.words.items:
        yield f"{head} -a {_fish_word(item.word)}{_meaning(item.meaning)}"
    if place.words.asked:
        yield f"{head} -a {_fish_word('(__stoker_ask ' + ' '.join(place.words.asked) + ')')}"
    if place.words.has_files:
        yield f"{head} -F"
    for option in place.options:
        short = f" -s {option.short[1]}" if option.short else ""
        taken = "" if option.values is None else _fish_values(option.values)
        yield f"{head} -l {option.name[2:]}{short}{taken}{_meaning(option.meaning)}"


def _fish_values(values: Values) -> str:
    words = [item.word for item in values.items]
    words += [f"(__stoker_ask {' '.join(values.asked)})"] if values.asked else []
    offered = f" -a {_fish_word(' '.join(words))}" if words else ""
    return f" -r{' -F' if values.has_files else ' -f'}{offered}"


def _meaning(text: str) -> str:
    return f" -d {_fish_word(text)}" if text else ""


def _fish_word(text: str) -> str:
    """Single quotes of fish, which know two escapes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
