#!/usr/bin/env bash
# A private Ceph RADOS Gateway: a real S3 server for tests, in memory, gone when it ends.
#
#   radosgw.sh start DIR [--port N]... [--tls-port N] [--address A]
#   radosgw.sh crash DIR           kills the gateways with -9; `start DIR` brings them back, with
#                                  every object: those are in the OSD
#   radosgw.sh admin DIR ARGS...   radosgw-admin
#   radosgw.sh stop DIR            ends everything, and removes DIR
#
# `start` prints the gateways' URLs, one a line, once they answer: one for each --port (0, as
# without any: a free one; several are several gateways over one store), and one of https for
# --tls-port (of the first gateway; the authority to trust is DIR/ca.pem).  They listen on 127.0.0.1
# or A.  Keys: weightfs / weightfs-secret.  DIR holds sockets: at most 80 letters.  Nothing outside
# DIR is touched; processes are known by pid files in it.
set -euo pipefail
shopt -s nullglob

die() { echo "radosgw.sh: $*" >&2; exit 1; }

# quiet COMMAND...: shows what it printed only if it fails.
quiet() { timeout 60 "$@" >"$dir/log/output" 2>&1 || { cat "$dir/log/output" >&2; die "failed: $*"; }; }

# --- processes ---

# pid_of NAME: its pid, if it runs from here.
pid_of() {
  local pid
  pid=$(cat "$dir/$1.pid" 2>/dev/null) &&
    tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF -- "-c $dir/ceph.conf" && echo "$pid"
}

# start_daemon NAME PROGRAM ARGS...
start_daemon() {
  local name=$1
  shift
  pid_of "$name" >/dev/null && return
  rm -f "$dir/$name.asok"
  # From a subshell, which leaves no child here whose end is told.
  (setsid "$@" -f -c "$dir/ceph.conf" </dev/null >>"$dir/log/$name.out" 2>&1 & echo $! >"$dir/$name.pid")
}

# is_gone PID: its last thread has ended, and so its ports are free. It may be a zombie whom nobody waits for.
is_gone() {
  local threads=("/proc/$1/task/"*)
  [ ${#threads[@]} -eq 0 ] || { [ ${#threads[@]} -eq 1 ] && grep -qs '^State:.*Z' "/proc/$1/status"; }
}

# kill_daemon NAME
kill_daemon() {
  local pid
  pid=$(pid_of "$1") || return 0
  kill -KILL "$pid" 2>/dev/null || true
  until is_gone "$pid"; do sleep 0.01; done
}

# wait_answer NAME ADDRESS PORT
wait_answer() {
  local line end=$((SECONDS + 60))
  until { exec 3<>"/dev/tcp/$2/$3"; } 2>/dev/null && printf 'GET / HTTP/1.0\r\n\r\n' >&3 &&
    IFS= read -r -t 5 -u 3 line && [[ $line == HTTP/* ]]; do
    if [ $SECONDS -ge $end ] || ! kill -0 "$(cat "$dir/$1.pid")" 2>/dev/null; then
      cat "$dir/log/$1.out" >&2
      die "$1 does not answer on $2:$3"
    fi
    sleep 0.02
  done
  exec 3>&-
}

# --- a new server ---

# A port that nobody listens on, below those that the kernel gives to clients.
free_port() {
  local port
  while port=$((20000 + RANDOM % 12000)); { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null; do :; done
  echo "$port"
}

make_certificate() {
  local name
  for name in ca server; do openssl ecparam -genkey -name prime256v1 -noout -out "$dir/$name.key"; done
  openssl req -x509 -key "$dir/ca.key" -days 30 -subj '/CN=weightfs tests' -out "$dir/ca.pem"
  openssl req -new -key "$dir/server.key" -subj "/CN=$address" -out "$dir/server.csr"
  openssl x509 -req -in "$dir/server.csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -CAcreateserial \
    -days 30 -extfile <(echo "subjectAltName=IP:$address,DNS:localhost") -out "$dir/server.pem" 2>/dev/null
}

write_config() {  # FSID MONITOR
  cat <<CONF
[global]
fsid = $1
mon_host = $2
public_addr = 127.0.0.1
keyring = $dir/keyring
run_dir = $dir
pid_file =
admin_socket = $dir/\$name.asok
log_file = $dir/log/\$name.log
crash_dir = $dir/log
mon_data = $dir/mon
osd_data = $dir/osd
mon_cluster_log_file = $dir/log/cluster.log
osd_objectstore = memstore
memstore_device_bytes = 34359738368

# One copy of everything, and no waiting for other monitors: there are none.
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
mon_data_avail_warn = 1
mon_data_avail_crit = 1
auth_allow_insecure_global_id_reclaim = false
paxos_propose_interval = 0.02
paxos_min_wait = 0.01

# What was removed leaves the memory soon, not after two hours.
rgw_gc_obj_min_wait = 5
rgw_gc_processor_period = 5
CONF
  local i ends
  for i in "${!ports[@]}"; do
    ends="endpoint=$address:${ports[i]}"
    [ "$i" != 0 ] || [ -z "$tls_port" ] ||
      ends+=" ssl_endpoint=$address:$tls_port ssl_certificate=$dir/server.pem ssl_private_key=$dir/server.key"
    printf '\n[client.rgw.%d]\nrgw_frontends = beast %s\nrgw_data = %s/rgw\n' "$i" "$ends" "$dir"
  done
}

create() {
  local fsid monitor uuid i
  mkdir -p "$dir"/{mon,osd,rgw,log}
  chmod 700 "$dir"
  trap stop EXIT  # half of a server is of no use
  for i in "${!ports[@]}"; do [ "${ports[i]}" != 0 ] || ports[i]=$(free_port); done
  [ "$tls_port" != 0 ] || tls_port=$(free_port)
  [ -z "$tls_port" ] || make_certificate
  fsid=$(cat /proc/sys/kernel/random/uuid) uuid=$(cat /proc/sys/kernel/random/uuid)
  monitor="[v2:127.0.0.1:$(free_port),v1:127.0.0.1:$(free_port)]"
  write_config "$fsid" "$monitor" >"$dir/ceph.conf"

  quiet ceph-authtool "$dir/keyring" --create-keyring --gen-key -n mon. --cap mon 'allow *'
  quiet ceph-authtool "$dir/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *'
  quiet ceph-authtool "$dir/keyring" --gen-key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
  for i in "${!ports[@]}"; do
    quiet ceph-authtool "$dir/keyring" --gen-key -n "client.rgw.$i" --cap mon 'allow rwx' --cap osd 'allow rwx'
  done
  quiet monmaptool --create --fsid "$fsid" --addv a "$monitor" "$dir/monmap"
  quiet ceph-mon -c "$dir/ceph.conf" -i a --mkfs --monmap "$dir/monmap" --keyring "$dir/keyring"
  start_daemon mon.a ceph-mon -i a
  quiet ceph -c "$dir/ceph.conf" osd new "$uuid" 0
  quiet ceph-osd -c "$dir/ceph.conf" -i 0 --mkfs --osd-uuid "$uuid"
  start_daemon osd.0 ceph-osd -i 0
  quiet radosgw-admin -c "$dir/ceph.conf" user create --uid=weightfs --display-name=weightfs --access-key=weightfs \
    --secret-key=weightfs-secret
  { printf "http://$address:%s\n" "${ports[@]}" && [ -z "$tls_port" ] || echo "https://$address:$tls_port"; } >"$dir/urls"
  trap - EXIT
}

# --- commands ---

start() {
  ports=() tls_port='' address=127.0.0.1
  while [ $# -gt 0 ]; do
    case $1 in
      --port) ports+=("${2:?}") ;;
      --tls-port) tls_port=${2:?} ;;
      --address) address=${2:?} ;;
      *) die "unknown option $1" ;;
    esac
    shift 2
  done
  [ ${#ports[@]} -gt 0 ] || ports=(0)
  [ ${#dir} -le 80 ] || die "DIR is too long for the sockets in it: $dir"
  [ -e "$dir/urls" ] || create
  local urls url name i
  mapfile -t urls <"$dir/urls"
  for i in "${!urls[@]}"; do
    [[ ${urls[i]} == http:* ]] && start_daemon "client.rgw.$i" radosgw -n "client.rgw.$i"
  done
  for i in "${!urls[@]}"; do
    url=${urls[i]#*//}
    [[ ${urls[i]} == http:* ]] && wait_answer "client.rgw.$i" "${url%:*}" "${url#*:}"
  done
  cat "$dir/urls"
}

crash() {
  local file
  for file in "$dir"/client.rgw.*.pid; do kill_daemon "$(basename "$file" .pid)"; done
}

admin() { radosgw-admin -c "$dir/ceph.conf" "$@"; }

stop() {
  local file
  for file in "$dir"/*.pid; do kill_daemon "$(basename "$file" .pid)"; done
  [ ! -e "$dir/ceph.conf" ] || rm -rf -- "$dir"
}

case ${1:-} in
  start | crash | admin | stop) ;;
  -h | --help) sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) die "there is no command '${1:-}' (see --help)" ;;
esac
[ $# -ge 2 ] || die "$1 needs DIR"
command=$1 dir=$(realpath -m -- "$2")
case $command in crash | admin) [ -e "$dir/urls" ] || die "no server runs in $dir" ;; esac
shift 2
"$command" "$@"
