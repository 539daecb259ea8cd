package brokerstest

import (
	"context"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

const (
	rabbit   = "HOLDFAST_TEST_AMQP"
	control  = "HOLDFAST_TEST_RABBITMQCTL"
	postgres = "HOLDFAST_TEST_POSTGRES"
)

// Two clones have brokers of their own at the same time. Two runs of up in one clone start them
// once, up after an interrupted up works, and down leaves the brokers of other clones alone.
// Nothing is installed if all is there.
func TestChaosClonesHaveBrokersOfTheirOwn(t *testing.T) {
	brokertest.Fault(t)
	t.Parallel()
	first, second := newClone(t), newClone(t)
	second.ordinary()
	var one, again, two map[string]string
	var ups sync.WaitGroup
	ups.Go(func() { one = first.up() })
	ups.Go(func() { again = first.up() })
	ups.Go(func() {
		second.interrupt("starting RabbitMQ", syscall.SIGKILL, false)
		second.interrupt("starting PostgreSQL", syscall.SIGINT, true)
		two = second.up()
	})
	ups.Wait()
	if !maps.Equal(one, again) || len(one) != 3 {
		t.Errorf("two runs of up in one clone print\n%v\n%v", one, again)
	}
	if t.Failed() {
		return
	}
	for _, variables := range []map[string]string{one, two} {
		must(t, uses(variables))
	}
	if one[rabbit] == two[rabbit] || one[postgres] == two[postgres] {
		t.Errorf("two clones share a broker:\n%v\n%v", one, two)
	}
	t.Run("TheUsersOwnAreUsed", func(t *testing.T) { usesTheUsers(t, one) })
	t.Run("TheUsersOwnMayBeClosed", func(t *testing.T) { leavesTheUsers(t, one) })

	down(t, second)
	if uses(two) == nil {
		t.Error("the brokers answer after down")
	}
	must(t, uses(one))
	for _, c := range []*clone{first, second} {
		if calls := c.calls(); calls != "" {
			t.Errorf("up of installed brokers calls\n%s", calls)
		}
	}
}

// usesTheUsers checks that a clone uses brokers that it did not start, on the usual port or by
// name, and stops neither.
func usesTheUsers(t *testing.T, users map[string]string) {
	c := newClone(t)
	c.set("HOLDFAST_AMQP_PORT="+port(t, users[rabbit]), control+"="+users[control], postgres+"="+users[postgres])
	found := c.up()
	if found[rabbit] != users[rabbit] || found[postgres] != users[postgres] {
		t.Errorf("up finds %v, want %v", found, users)
	}
	down(t, c)
	must(t, uses(users))
}

// leavesTheUsers checks that up says why a broker on the usual port is of no use: a RabbitMQ
// without the right to create virtual hosts, a PostgreSQL with an unknown password.
func leavesTheUsers(t *testing.T, users map[string]string) {
	c := newClone(t)
	c.set("HOLDFAST_AMQP_PORT="+port(t, users[rabbit]), control+"=false", "HOLDFAST_POSTGRES_PORT="+port(t, users[postgres]))
	said, err := c.run("status")
	must(t, err)
	says(t, said, "lets this user create no virtual hosts", "RabbitMQ: none",
		"no PostgreSQL for tests on port", "password", postgres+" can name one", "PostgreSQL: none")
}

// A program that listens on the usual ports and never answers holds up for a moment only.
func TestChaosMutePortsAreLeftAlone(t *testing.T) {
	brokertest.Fault(t)
	t.Parallel()
	c := newClone(t)
	for _, variable := range []string{"HOLDFAST_AMQP_PORT", "HOLDFAST_POSTGRES_PORT"} {
		l := listen(t)
		defer l.Close()
		c.set(variable + "=" + portOf(l))
	}
	said, err := c.run("status")
	must(t, err)
	says(t, said, "no RabbitMQ for tests on port", "timeout", "no PostgreSQL for tests on port")
}

// A broker that is named but does not answer is an error that tells what to do, and no password.
func TestChaosNamedBrokerThatIsDown(t *testing.T) {
	brokertest.Fault(t)
	t.Parallel()
	for _, variable := range []string{rabbit, postgres} {
		c := newClone(t)
		c.set(rabbit+"=amqp://u:secret@127.0.0.1:1/", postgres+"=postgres://u:secret@127.0.0.1:1/d")
		if variable == postgres {
			c.set(rabbit + "=")
		}
		said, err := c.run("up")
		if err == nil || strings.Contains(said, "secret") {
			t.Errorf("up with a dead %s: error %v\n%s", variable, err, said)
		}
		says(t, said, "error: the broker of "+variable, "refused", "start it, or unset "+variable)
	}
}

// Without flock a lock that a killed run has left is not waited for.
func TestChaosLockOfAKilledRun(t *testing.T) {
	brokertest.Fault(t)
	t.Parallel()
	c := newClone(t)
	c.hide("flock")
	dead := exec.Command("true")
	must(t, dead.Run())
	must(t, os.MkdirAll(c.path(".tmp/brokers"), 0o700))
	owner := c.path(".tmp/brokers/lock.owner")
	must(t, os.Symlink(pid(dead), owner))
	said, err := c.run("status")
	must(t, err)
	says(t, said, "RabbitMQ: none")
	if _, err := os.Lstat(owner); err == nil {
		t.Error("the lock is held after the end")
	}
}

// uses creates a virtual host and a database, as tests do, and deletes them.
func uses(variables map[string]string) error {
	c, err := amqp.Dial(variables[rabbit])
	if err != nil {
		return err
	}
	_ = c.Close()
	for _, command := range []string{"add_vhost", "delete_vhost"} {
		if err := exec.Command(filepath.Clean(variables[control]), "-q", command, "proof").Run(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	db, err := pgx.Connect(ctx, variables[postgres])
	if err != nil {
		return err
	}
	defer db.Close(ctx)
	for _, statement := range []string{"CREATE DATABASE proof", "DROP DATABASE proof"} {
		if _, err := db.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func down(t *testing.T, c *clone) {
	t.Helper()
	if said, err := c.run("down"); err != nil {
		t.Fatalf("down: %v\n%s", err, said)
	}
}

func says(t *testing.T, said string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(said, want) {
			t.Errorf("the script does not say %q:\n%s", want, said)
		}
	}
}

func port(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	must(t, err)
	return u.Port()
}

// An interrupt ends a script also when the command of the moment handles the signal and succeeds.
func TestInterruptEndsAScript(t *testing.T) {
	cmd := exec.Command("bash", "-c", `set -e; source ../lib.sh; bash -c 'trap "" INT; kill -INT 0'; echo goes on`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // 0 is this group
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 130 || len(out) > 0 {
		t.Errorf("exit code %d, %v, output %q", code, err, out)
	}
}
