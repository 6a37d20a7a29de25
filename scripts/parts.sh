# shellcheck shell=bash
# To be sourced. `part COMMAND ARGS…` runs a command; how long each took is told at the end of the script.
# `together COMMAND COMMAND…` runs several side by side, each given as one word, and shows what they said at the end.
parts=()
part() {
  local began=$SECONDS code=0
  "$@" || code=$?
  parts+=("$(printf '%5d s  %s' $((SECONDS - began)) "$*")")
  return $code
}
together() {
  local began=$SECONDS code=0 at said
  local -a ids
  said=$(mktemp -d)
  for at in $(seq $#); do
    bash -c "${!at}" >"$said/$at" 2>&1 &
    ids+=($!)
  done
  for at in $(seq $#); do
    wait "${ids[at - 1]}" || code=$?
    cat "$said/$at"
  done
  rm -r "$said"
  parts+=("$(printf '%5d s  %s' $((SECONDS - began)) "$(printf '%s, ' "$@" | sed 's/, $//')")")
  return $code
}
tell_parts() {
  [ ${#parts[@]} -eq 0 ] || printf '%s\n' "" "$1:" "${parts[@]}"
}
