# Sourced by the other scripts: how to say something, and how to install on Debian.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Only what a script is asked for goes to standard output; all else is said here.
say() { printf '%s\n' "$*" >&2; }

fail() {
	say "error: $*"
	exit 1
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

apt() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
		-o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null >&2
}

# install installs packages by apt. Callers look for what they need afterwards rather than at the
# result, because a package that cannot start its server fails though its programs are there.
install() {
	say "installing $* by apt"
	apt update || say "apt-get update failed; trying with the lists that are there"
	apt install --no-install-recommends "$@" || say "apt-get install failed"
}
