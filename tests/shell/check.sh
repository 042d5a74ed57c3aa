#!/bin/bash
# Completions and the manual page of the program, as shells and man take them; what it says to a line with a mistake.
# Usage: tests/shell/check.sh CARAT
carat=$1
failed=0
fail() { failed=1; echo "FAIL  $*"; }
# completes WORDS...: what bash offers for the last of them, sorted, in one line.
eval "$("$carat" completions bash)" || fail "bash does not take its completions"
completes() {
  COMP_WORDS=(carat "$@")
  COMP_CWORD=$#
  COMPREPLY=()
  _carat
  printf '%s\n' "${COMPREPLY[@]}" | sort | paste -sd ' '
}
expect() { [ "$1" = "$2" ] || fail "$3: '$1', not '$2'"; }
expect "$(completes r)" "report rm run" "commands"
expect "$(completes eval kl)" "kld" "commands of a command"
expect "$(completes serve --mod)" "--model --model-draft --models-dir --models-memory" "flags"
expect "$(completes eval ppl --chun)" "--chunks" "flags of a command of a command"
expect "$(completes run --isa a)" "amx avx2 avx512" "values"
expect "$(completes --log-level w)" "warn" "values of a flag of all commands"
expect "$(completes run -m mod)" "" "files are left to the shell"
for shell in zsh fish; do
  "$carat" completions $shell >/tmp/carat-completions.$$ || fail "$shell"
  if command -v $shell >/dev/null; then $shell -n /tmp/carat-completions.$$ || fail "$shell does not take its completions"; fi
done
grep -qF "complete -c carat -n '__fish_seen_subcommand_from run' -s m -l model -r -F" /tmp/carat-completions.$$ || fail "fish: run -m"
"$carat" man >/tmp/carat-completions.$$
for words in 'CARAT RUN' 'CARAT EVAL PPL' 'EXIT STATUS'; do
  grep -qi "^.SH \"$words\"" /tmp/carat-completions.$$ || fail "the manual page has no $words"
done
if command -v groff >/dev/null; then
  warnings=$(groff -man -Tutf8 -ww -z /tmp/carat-completions.$$ 2>&1)
  [ -z "$warnings" ] || fail "the manual page: $warnings"
fi
rm -f /tmp/carat-completions.$$
"$carat" completions tcsh 2>/dev/null
[ $? = 2 ] || fail "an unknown shell must be wrong usage"
# says ERROR HINT WORDS...: wrong usage (2), with these words.
says() {
  said=$("$carat" "${@:3}" 2>&1 </dev/null)
  code=$?
  [ $code = 2 ] || fail "carat ${*:3}: code $code"
  case $said in "error: $1"*"hint: $2"*) ;; *) fail "carat ${*:3}: $said" ;; esac
}
says "carat needs a command" "carat --help lists them"
says "carat eval needs a command" "carat eval --help lists them" eval
says "unknown command 'serv'" "is serve meant? carat --help lists the commands" serv
says "unknown command 'xyzzy'" "carat --help lists the commands" xyzzy
says "unknown argument '--prot'" "is --port meant? carat serve --help lists the flags" serve --prot 8080
says "unknown argument '--tmep=0'" "is --temp meant?" run --tmep=0
says "unknown argument 'a.gguf'" "a model is given with -m FILE" run a.gguf
says "carat inspect needs FILE" "carat inspect --help says what that is" inspect
says "--ctx-size needs a value" "carat bench --help lists the flags" bench -m a.gguf -c
[ $failed = 0 ] && echo ok
exit $failed
