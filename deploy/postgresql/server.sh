# shellcheck shell=bash
# Read by `hook` and `bootstrap`: one server, its processes and files. Wants the settings of postgresql.env.

: "${BIN:=/usr/lib/postgresql/15/bin}" "${DATA:?not set in postgresql.env}" "${PEER_ADDRESS:?not set in postgresql.env}"
: "${CONFIG:=$DATA/postgresql.conf}" "${SOCKET:=/var/run/postgresql}" "${PORT:=5432}" "${PEER_PORT:=$PORT}"
: "${OWNER:=postgres}" "${SUPERUSER:=postgres}" "${STATE:=$DATA.tiebreak}" "${LOG:=$STATE/server.log}"

AS_OWNER=()
[ "$EUID" != 0 ] || AS_OWNER=(setpriv --reuid "$OWNER" --regid "$OWNER" --init-groups --)
[ -d "$STATE" ] || "${AS_OWNER[@]}" mkdir -p -m 0700 "$STATE" || install -d -m 0700 -o "$OWNER" "$STATE"
# As the kernel names it.
REAL=$(readlink -m "$DATA")

fail() {
    echo "$*" >&2
    exit 2
}

# Replaces a file whole, and durably. It belongs to the server's owner.
keep() {
    local new="$1.new"
    printf '%s\n' "$2" > "$new" && chown "$OWNER:" "$new" && chmod 0600 "$new" && sync "$new" && mv "$new" "$1" &&
        sync "$(dirname "$1")" || fail "$1 cannot be written"
}

# ---- processes -----------------------------------------------------------------------------------------------------

# Every process of a server works in its data directory, also one whose postmaster is gone, and also if the directory is.
processes() {
    find /proc/[0-9]*/cwd -maxdepth 0 \( -lname "$REAL" -o -lname "$REAL (deleted)" \) 2> /dev/null |
        while IFS=/ read -r _ _ pid _; do
            case $(readlink "/proc/$pid/exe" 2> /dev/null) in */postgres*) echo "$pid" ;; esac
        done
}

postmaster() {
    local pid
    read -r pid 2> /dev/null < "$DATA/postmaster.pid" || return 1
    [ "$(readlink "/proc/$pid/cwd" 2> /dev/null)" = "$REAL" ] && echo "$pid"
}

# $1: seconds for an end in good order. Returns when nothing of it is left.
stop_server() {
    local pid until
    if [ "$1" != 0 ] && pid=$(postmaster); then
        kill -INT "$pid" 2> /dev/null
        kill -CONT "$pid" 2> /dev/null
        until=$(awk -v now="$EPOCHREALTIME" -v span="$1" 'BEGIN { printf "%.0f", (now + span) * 1000 }')
        while kill -0 "$pid" 2> /dev/null && [ "$((${EPOCHREALTIME/[.,]/} / 1000))" -lt "$until" ]; do sleep 0.01; done
    fi
    # The postmaster first, so that it starts nothing; then whatever has lost it.
    if pid=$(postmaster); then kill -KILL "$pid" 2> /dev/null; fi
    # What ends while it is looked at makes `find` fail: only what was found counts.
    local left
    while left=$(processes || true); [ -n "$left" ]; do
        # shellcheck disable=SC2086
        kill -KILL $left 2> /dev/null
        sleep 0.01
    done
    # Nobody of whom it speaks is left, and its number may be given to others.
    rm -f "$DATA/postmaster.pid"
}

# The operator's configuration, and after it what this node has to say.
write_server_conf() {
    keep "$STATE/server.conf" "# Written by the hook at each start.
include '$CONFIG'
data_directory = '$DATA'
port = $PORT
unix_socket_directories = '$SOCKET'
wal_retrieve_retry_interval = 200ms
wal_receiver_timeout = 5s
wal_receiver_status_interval = 1s
wal_sender_timeout = 5s
wal_log_hints = on
max_slot_wal_keep_size = ${KEEP_WAL:-8GB}
include '$STATE/acknowledge.conf'
include '$STATE/follow.conf'"
    local owned
    owned=$(grep -Eio '^[[:space:]]*(synchronous_standby_names|primary_conninfo|primary_slot_name|recovery_target[a-z_]*|restore_command)\b' \
        "$DATA/postgresql.auto.conf" 2> /dev/null)
    [ -z "$owned" ] ||
        fail "$DATA/postgresql.auto.conf sets" $owned "which is the hook's business: ALTER SYSTEM RESET it, or delete the line"
}

# As a standby, always.
start_server() {
    write_server_conf
    [ -e "$STATE/acknowledge.conf" ] || keep "$STATE/acknowledge.conf" "synchronous_standby_names = '\"tiebreak-nobody\"'"
    [ -e "$STATE/follow.conf" ] || keep "$STATE/follow.conf" "primary_conninfo = ''"
    rm -f "$DATA/recovery.signal"
    keep "$DATA/standby.signal" ""
    [ -e "$LOG" ] || "${AS_OWNER[@]}" touch "$LOG"
    # It does not restart by itself after a crash: who leads then is decided by the votes.
    "${AS_OWNER[@]}" "$BIN/postgres" -D "$DATA" -c "config_file=$STATE/server.conf" -c restart_after_crash=off \
        -c hot_standby=on -c recovery_target_timeline=latest \
        >> "$LOG" 2>&1 < /dev/null 9>&- &
    started=$!
}

# Until it answers; $1: seconds.
await_ready() {
    local until
    until=$(awk -v now="$EPOCHREALTIME" -v span="$1" 'BEGIN { printf "%.0f", (now + span) * 1000 }')
    while [ "$((${EPOCHREALTIME/[.,]/} / 1000))" -lt "$until" ]; do
        "$BIN/pg_isready" -q -h "$SOCKET" -p "$PORT" && return 0
        if [ -n "${started:-}" ] && ! kill -0 "$started" 2> /dev/null; then return 1; fi
        sleep 0.02
    done
    return 1
}

# ---- what it is asked ----------------------------------------------------------------------------------------------

sql() {
    PGCONNECT_TIMEOUT=3 "${AS_OWNER[@]}" "$BIN/psql" -XqAtw -F ' ' -v ON_ERROR_STOP=1 -h "$SOCKET" -p "$PORT" -U "$SUPERUSER" \
        -d postgres "$@"
}

# $1: as whom. Only a standby that is known to be one bears its node's name, for which commits wait.
conninfo() {
    echo "host=$PEER_ADDRESS port=$PEER_PORT user=tiebreak passfile=$STATE/passfile application_name=$1" \
        "connect_timeout=2 keepalives_idle=3 keepalives_interval=1 keepalives_count=3 tcp_user_timeout=5000"
}

leader_sql() {
    "${AS_OWNER[@]}" "$BIN/psql" -XqAtw -F ' ' -v ON_ERROR_STOP=1 -d "$(conninfo "$TIEBREAK_NODE-asks") dbname=postgres" "$@"
}

control() { LC_ALL=C "$BIN/pg_controldata" "$DATA" | sed -n "s/^$1: *//p"; }

# Whether there is data, whole.
usable() {
    [ -s "$DATA/global/pg_control" ] && [ -e "$DATA/PG_VERSION" ] && [ ! -e "$STATE/incomplete" ] &&
        [ ! -e "$DATA/tiebreak.incomplete" ]
}
