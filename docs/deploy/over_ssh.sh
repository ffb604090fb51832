#!/bin/bash
# Parameter servers and workers on other machines, and a program on this one.
# docs/deploy/ssh.md says what the variables mean.
set -euo pipefail

read -ra ps <<<"$PS"
read -ra workers <<<"$WORKERS"
port=${PORT:-2222}

# Addresses as a list of JSON.
addresses() {
  local separator='' host
  for host in "$@"; do
    printf '%s"%s:%d"' "$separator" "$host" "$port"
    separator=', '
  done
}

cluster="{\"chief\": [$(addresses "$CHIEF")], \
\"ps\": [$(addresses "${ps[@]}")], \
\"worker\": [$(addresses "${workers[@]}")]}"

tf_config() { # KIND INDEX
  printf '{"cluster": %s, "task": {"type": "%s", "index": %d}}' "$cluster" "$@"
}

# Runs on the other machine: a task, and again after a failure, unless it says
# that there is no chief (69).
serve='
for restarts in 10 9 8 7 6 5 4 3 2 1 0; do
  tfps serve && exit
  code=$?
  [ $code -ne 69 ] || exit $code
  echo "tfps serve ended with exit code $code; restarts left: $restarts"
  [ $restarts -eq 0 ] || sleep 1
done
exit $code'

start() { # KIND INDEX HOST
  local config
  config=$(tf_config "$1" "$2")
  ssh -n -o BatchMode=yes "$3" \
    "cd $(printf %q "$FOLDER") && . .venv/bin/activate &&" \
    "export TF_CONFIG=$(printf %q "$config") && $serve" \
    >>"$1-$2.log" 2>&1 &
}

for i in "${!ps[@]}"; do start ps "$i" "${ps[i]}"; done
for i in "${!workers[@]}"; do start worker "$i" "${workers[i]}"; done

code=0
TF_CONFIG=$(tf_config chief 0) python "$@" || code=$?
if [ "$code" -eq 0 ]; then
  # The others end with the program.
  wait
fi
exit "$code"
