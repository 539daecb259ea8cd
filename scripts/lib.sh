# Sourced by the other scripts: how to say something, how to wait for each other, and how to install on Debian.
# shellcheck shell=bash disable=SC2164 # set -e

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# An interrupt ends the script. Without a trap bash continues if the command of the moment handles the signal and succeeds.
trap 'exit 130' INT
trap 'exit 143' TERM

# Only what a script is asked for goes to standard output; all else is said here.
say() { printf '%s\n' "$*" >&2; }

fail() {
	say "error: $*"
	exit 1
}

# lock waits until no other process holds the lock of a file. The end of this process, and of the commands that it has
# started, releases the lock: a run after an interrupted one waits for what is still under way. Servers are started with
# 9>&-, else they would hold the lock.
lock() { # file
	local owner
	exec 9>"$1"
	if command -v flock >/dev/null; then
		flock --nonblock 9 && return
		say "waiting for another run of ${0##*/}"
		flock 9
		return
	fi
	# Without flock (macOS) a link names the process that holds the lock.
	until ln -sn "$$" "$1.owner" 2>/dev/null; do
		owner=$(readlink "$1.owner") || continue
		ps -p "$owner" >/dev/null || rm -f "$1.owner"
		sleep 0.2
	done
	# shellcheck disable=SC2064 # the file of now
	trap "rm -f '$1.owner'" EXIT
}

# as_root runs a command as root, by sudo where need be; sudo may only ask for a password
# when there is somebody to answer.
as_root() {
	if [[ $(id -u) == 0 ]]; then
		"$@"
	elif [[ -t 0 && -t 2 ]]; then
		sudo "$@"
	else
		sudo -n "$@"
	fi
}

# can_install reports whether packages can be installed by apt.
can_install() {
	command -v apt-get >/dev/null || return 1
	[[ $(id -u) == 0 ]] && return
	command -v sudo >/dev/null || return 1
	[[ -t 0 && -t 2 ]] || sudo -n true 2>/dev/null
}

# The servers that a package starts outlive this process: they must not hold its lock.
apt() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
		-o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null >&2 9>&-
}

# install installs packages by apt. Callers look for what they need afterwards rather than at the
# result, because a package that cannot start its server fails though its programs are there.
install() {
	local since=$SECONDS
	say "installing $* by apt"
	# An interrupted installation is completed first: apt refuses to work before.
	[[ -z $(dpkg --audit) ]] || as_root dpkg --configure -a </dev/null >&2 9>&- || say "dpkg --configure -a failed"
	apt update || say "apt-get update failed; trying with the lists that are there"
	apt install --no-install-recommends "$@" || say "apt-get install failed"
	took "$since" "$@"
}

# took says how long an installation took, and adds a line to .tmp/installed: the seconds, and what was installed.
took() { # since what…
	local seconds=$((SECONDS - $1))
	shift
	mkdir -p .tmp
	printf '%s %s\n' "$seconds" "$*" >>.tmp/installed
	say "installed $* in $seconds s"
}

# installed_seconds prints the sum of .tmp/installed.
installed_seconds() { awk '{ sum += $1 } END { print sum + 0 }' .tmp/installed 2>/dev/null || echo 0; }
