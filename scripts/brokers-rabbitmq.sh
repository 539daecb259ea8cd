# Sourced by brokers.sh: RabbitMQ.
# shellcheck shell=bash disable=SC2034,SC2154 # variables that brokers.sh shares with this file

amqp_port=${HOLDFAST_AMQP_PORT:-5672}
amqp_url=     # of the broker that was found or started
amqp_control= # the rabbitmqctl of that broker, if it is not the one on the PATH

# amqp_find finds a RabbitMQ that answers.
amqp_find() {
	local usual="amqp://guest:guest@127.0.0.1:$amqp_port/"
	if [[ -n ${HOLDFAST_TEST_AMQP:-} ]]; then
		named HOLDFAST_TEST_AMQP
		amqp_url=$HOLDFAST_TEST_AMQP
	elif amqp_answers_own; then
		amqp_found_own
	# Other programs than the installed are asked for: what runs on the usual port is not of them.
	elif [[ -n ${HOLDFAST_TEST_RABBITMQ_BIN:-} ]]; then
		return 1
	elif ! answers -limit "$usual_limit" "$usual" >/dev/null; then
		[[ -z $(why) ]] || say "no RabbitMQ for tests on port $amqp_port: $(why). HOLDFAST_TEST_AMQP can name one"
		return 1
	elif ! lets_vhosts; then
		say "RabbitMQ on port $amqp_port lets this user create no virtual hosts, so tests cannot run beside each other on it"
		return 1
	else
		amqp_url=$usual
	fi
	say "RabbitMQ: $(without_password "$amqp_url")"
}

# amqp_answers_own reports whether the RabbitMQ of an earlier up answers. It may still be starting.
amqp_answers_own() {
	if [[ -e $state/amqp.compose ]]; then
		answers "$(recall amqp.url)" >/dev/null
	else
		runs rabbitmq >/dev/null && wait_for RabbitMQ rabbitmq "$(recall amqp.url)"
	fi
}

amqp_found_own() {
	amqp_url=$(recall amqp.url)
	amqp_control=$state/rabbitmqctl
}

# lets_vhosts reports whether tests may create virtual hosts on the broker of the usual port, by rabbitmqctl or by the
# HTTP API. Packages that are tested beside each other need one each.
lets_vhosts() {
	timeout 30 "${HOLDFAST_TEST_RABBITMQCTL:-rabbitmqctl}" --quiet status --formatter json 2>/dev/null |
		grep -Eq "\"port\": ?$amqp_port\b" ||
		curl --fail --silent --max-time 5 --user guest:guest http://127.0.0.1:15672/api/vhosts >/dev/null 2>&1
}

# amqp_start starts a RabbitMQ, and does not wait for it.
amqp_start() {
	if rabbitmq_program rabbitmq-server >/dev/null; then
		amqp_start_own
	elif has_docker; then
		amqp_start_container
	else
		fail "the tests need a RabbitMQ: install rabbitmq-server, or name a server in HOLDFAST_TEST_AMQP, or start docker," \
			"or run this as a user who may install packages by apt"
	fi
}

amqp_await() {
	[[ -e $state/amqp.compose ]] || restart_until_answers RabbitMQ rabbitmq amqp.url amqp_start_own
	amqp_found_own
	say "RabbitMQ: $(without_password "$amqp_url")"
}

# rabbitmq_program prints the path of a program of the server: what is on the PATH of a Debian system refuses to run for
# anybody but root and rabbitmq.
rabbitmq_program() {
	local program=${HOLDFAST_TEST_RABBITMQ_BIN:-/usr/lib/rabbitmq/bin}/$1
	if [[ -x $program ]]; then echo "$program"; else command -v "$1"; fi
}

# amqp_start_own starts a node with its own name, folder and ports, and a port mapper of its own: the system's may be
# older, or closed to us.
amqp_start_own() {
	local home=$state/rabbitmq port mapper arguments variables
	amqp_down
	port=$(free_port)
	mapper=$(free_port)
	mkdir "$home"
	cat >"$home/rabbitmq.conf" <<-END
		listeners.tcp.default = 127.0.0.1:$port
		log.console = true
		log.console.level = warning
		log.file = false
		# A test machine with a full disk or little memory is to fail loudly, not to block senders.
		disk_free_limit.absolute = 64MB
	END
	# The data are thrown away with the node, so the log of quorum queues is not synchronized with the disk: beside a program that
	# writes much, a confirm would take seconds.
	arguments='-kernel inet_dist_use_interface {127,0,0,1} -ra wal_sync_method none'
	variables=(
		HOME="$home"
		RABBITMQ_NODENAME="holdfast-$port@localhost"
		ERL_EPMD_ADDRESS=127.0.0.1
		ERL_EPMD_PORT="$mapper"
		RABBITMQ_CONF_ENV_FILE="$home/none"
	)
	control "$(rabbitmq_program rabbitmqctl)" "${variables[@]}" >"$state/rabbitmqctl"
	chmod 700 "$state/rabbitmqctl"
	remember amqp.url "amqp://guest:guest@127.0.0.1:$port/"
	say "starting RabbitMQ on 127.0.0.1:$port"
	launch epmd epmd -address 127.0.0.1 -port "$mapper"
	for _ in {1..100}; do
		! listens "$mapper" || break
		sleep 0.1
	done
	(
		umask 077
		allow_files
		cd "$home" || exit
		# RUNNING_UNDER_SYSTEMD: the script becomes the server instead of waiting for it.
		launch rabbitmq env "${variables[@]}" \
			RABBITMQ_DIST_PORT="$(free_port)" \
			RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="$arguments" \
			RABBITMQ_CONFIG_FILE="$home/rabbitmq.conf" \
			RABBITMQ_ADVANCED_CONFIG_FILE="$home/none" \
			RABBITMQ_MNESIA_BASE="$home/data" \
			RABBITMQ_LOG_BASE="$home/log" \
			RABBITMQ_ENABLED_PLUGINS_FILE="$home/plugins" \
			RABBITMQ_PID_FILE="$home/pid" \
			RUNNING_UNDER_SYSTEMD=1 \
			"$(rabbitmq_program rabbitmq-server)"
	)
}

# control writes a program that is rabbitmqctl for our node. It evaluates expressions by erl_call of Erlang, which takes
# 0.1 s instead of the 1 s, mostly of CPU, that rabbitmqctl takes to start; each test has a virtual host by this.
control() { # rabbitmqctl variables…
	local program=$1
	shift
	echo '#!/bin/sh'
	printf 'export'
	printf ' %q' "$@"
	cat <<-'END'

		if [ "$1 $2" = "-q eval" ] && answer=$(printf '%s\n' "$3" | erl_call -h "control$$" -sname "$RABBITMQ_NODENAME" -e 2>/dev/null); then
			case $answer in
			"{ok, "*) answer=${answer#"{ok, "} && printf '%s\n' "${answer%\}}" && exit ;;
			*) printf '%s\n' "$answer" >&2 && exit 69 ;;
			esac
		fi
	END
	printf 'exec %q "$@"\n' "$program"
}

# allow_files raises the limit of open files to 16,384 for what this shell starts. A queue has files of its own: with 1,024 a node
# stops to answer at four virtual hosts with delay queues.
allow_files() {
	[[ $(ulimit -n) == unlimited || $(ulimit -n) -ge 16384 ]] || ulimit -n 16384 ||
		say "RabbitMQ may open only $(ulimit -n) files: raise the hard limit (ulimit -Hn) to 16384"
}

amqp_start_container() {
	local port
	port=$(free_port)
	say "starting RabbitMQ on 127.0.0.1:$port by docker compose"
	remember amqp.compose yes
	remember amqp.url "amqp://guest:guest@127.0.0.1:$port/"
	printf '#!/bin/sh\nexec docker compose --project-directory %q --project-name %q exec -T rabbitmq rabbitmqctl "$@"\n' \
		"$PWD" "$(compose_project)" >"$state/rabbitmqctl"
	chmod 700 "$state/rabbitmqctl"
	HOLDFAST_AMQP_PORT=$port HOLDFAST_MANAGEMENT_PORT=$(free_port) compose up --detach --wait rabbitmq ||
		fail "docker compose could not start RabbitMQ: see above"
}

amqp_down() {
	if [[ -e $state/amqp.compose ]]; then
		compose rm --stop --force --volumes rabbitmq || say "the container of RabbitMQ is not removed"
	fi
	stop RabbitMQ rabbitmq TERM
	stop "Erlang's port mapper" epmd TERM
	rm -rf "$state/amqp.compose" "$state/amqp.url" "$state/rabbitmqctl" "$state/rabbitmq"
}
