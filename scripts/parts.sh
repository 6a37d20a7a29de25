# shellcheck shell=bash
# To be sourced. `part COMMAND ARGS…` runs a command; how long each took is told at the end of the script.
parts=()
part() {
  local began=$SECONDS code=0
  "$@" || code=$?
  parts+=("$(printf '%5d s  %s' $((SECONDS - began)) "$*")")
  return $code
}
tell_parts() {
  [ ${#parts[@]} -eq 0 ] || printf '%s\n' "" "$1:" "${parts[@]}"
}
