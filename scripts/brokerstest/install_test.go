package brokerstest

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// installs is an apt-get that records its calls and installs a server that does not run.
const installs = `#!/bin/sh
echo "apt-get $*" >>"$HOME/calls"
case "$*" in *install*) printf '#!/bin/sh\necho cannot run\nexit 1\n' >"$HOME/bin/rabbitmq-server"; chmod +x "$HOME/bin/rabbitmq-server" ;; esac
`

// without returns a clone on a machine without RabbitMQ.
func without(t *testing.T) *clone {
	t.Helper()
	c := newClone(t)
	c.hide("rabbitmq-server")
	c.set("HOLDFAST_TEST_RABBITMQ_BIN=/nowhere")
	return c
}

// Root installs what is missing by one call, up says how long the installation took, and what is
// wrong with a server that ends.
func TestChaosMissingServerIsInstalled(t *testing.T) {
	brokertest.Fault(t)
	t.Parallel()
	c := without(t)
	c.write("bin/apt-get", installs)
	c.write("bin/sudo", "#!/bin/sh\nshift\nexec \"$@\"\n") // sudo -n: without a password
	said, err := c.run("up")
	if err == nil {
		t.Errorf("up reports no error:\n%s", said)
	}
	says(t, said, "installing rabbitmq-server by apt", "installed rabbitmq-server in ", " s\n",
		"cannot run", "error: RabbitMQ ends right after its start; its log is ")
	if calls := c.calls(); strings.Count(calls, "apt-get") != 2 || !strings.Contains(calls, "install --no-install-recommends rabbitmq-server\n") {
		t.Errorf("calls of apt-get:\n%s", calls)
	}
	if took := read(t, c.path(".tmp/installed")); !strings.HasSuffix(took, " rabbitmq-server\n") {
		t.Errorf(".tmp/installed has %q", took)
	}
}

// An ordinary user installs by sudo, if sudo asks for no password.
func TestChaosOrdinaryUserInstallsBySudo(t *testing.T) {
	brokertest.Fault(t)
	t.Parallel()
	c := without(t)
	c.write("bin/apt-get", installs)
	c.write("bin/sudo", "#!/bin/sh\necho \"sudo $*\" >>\"$HOME/calls\"\nshift\nexec \"$@\"\n")
	c.ordinary()
	said, err := c.run("up")
	if err == nil {
		t.Errorf("up reports no error:\n%s", said)
	}
	says(t, said, "installed rabbitmq-server in ")
	says(t, c.calls(), "sudo -n true", "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get")
}

// An ordinary user without sudo is told what to do.
func TestChaosOrdinaryUserWithoutSudo(t *testing.T) {
	brokertest.Fault(t)
	t.Parallel()
	c := without(t)
	c.ordinary()
	said, err := c.run("up")
	if err == nil {
		t.Errorf("up reports no error:\n%s", said)
	}
	says(t, said, "error: the tests need a RabbitMQ: install rabbitmq-server, or name a server in HOLDFAST_TEST_AMQP")
	if strings.Contains(c.calls(), "apt-get") {
		t.Errorf("apt-get is called without sudo:\n%s", c.calls())
	}
}

// Where nothing can be installed, docker runs the brokers: each clone has containers and ports of
// its own, and down removes those containers.
func TestChaosContainersOfAClone(t *testing.T) {
	brokertest.Fault(t)
	t.Parallel()
	projects := map[string]bool{}
	for range 2 {
		c := without(t)
		c.write("bin/docker", "#!/bin/sh\necho \"$HOLDFAST_AMQP_PORT docker $*\" >>\"$HOME/calls\"\n")
		c.ordinary()
		variables := c.up()
		down(t, c)
		calls := c.calls()
		at := strings.Index(calls, "--project-name ")
		if at < 0 {
			t.Fatalf("calls of docker:\n%s", calls)
		}
		project := strings.Fields(calls[at:])[1]
		projects[project] = true
		says(t, calls, port(t, variables[rabbit])+" docker compose --project-name "+project+" up --detach --wait rabbitmq",
			"docker compose --project-name "+project+" rm --stop --force --volumes rabbitmq")
	}
	if len(projects) != 2 {
		t.Errorf("two clones share the containers %v", projects)
	}
}

func pid(cmd *exec.Cmd) string { return strconv.Itoa(cmd.Process.Pid) }
