package brokertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQNode is a [Node] with RabbitMQ's commands.
type RabbitMQNode struct{ *Node }

// Control runs rabbitmqctl on the node, and on no other.
func (n RabbitMQNode) Control(args ...string) {
	n.t.Helper()
	must(n.t, n.server.control(args...))
}

// Eval evaluates an Erlang expression, with its full stop, on the node.
func (n RabbitMQNode) Eval(expression string) {
	n.t.Helper()
	n.Control("eval", expression)
}

// RestartApp stops RabbitMQ on the node and starts it again, as rabbitmqctl stop_app and start_app
// do. The Erlang node stays.
func (n RabbitMQNode) RestartApp() {
	n.t.Helper()
	n.Eval("rabbit:stop(), rabbit:start().")
}

// AddVhost creates a virtual host for the time of the test, with all rights for the user of the
// node's URL.
func (n RabbitMQNode) AddVhost(name string) {
	n.t.Helper()
	n.Eval(fmt.Sprintf(`ok = rabbit_vhost:add(<<"%[1]s">>, <<"test">>), `+
		`ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"%[1]s">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>).`, erlangText(name)))
	n.t.Cleanup(func() { n.Eval(fmt.Sprintf(`rabbit_vhost:delete(<<"%s">>, <<"test">>).`, erlangText(name))) })
}

// AddUser creates a user for the time of the test, with rights in the node's virtual host.
func (n RabbitMQNode) AddUser(name, password, configure, write, read string) {
	n.t.Helper()
	vhost := n.URL[strings.LastIndexByte(n.URL, '/')+1:]
	n.Eval(fmt.Sprintf(`ok = rabbit_auth_backend_internal:add_user(<<"%[1]s">>, <<"%[2]s">>, <<"test">>), `+
		`ok = rabbit_auth_backend_internal:set_permissions(<<"%[1]s">>, <<"%[3]s">>, <<"%[4]s">>, <<"%[5]s">>, <<"%[6]s">>, <<"test">>).`,
		name, password, vhost, erlangText(configure), erlangText(write), erlangText(read)))
	n.t.Cleanup(func() { n.Eval(fmt.Sprintf(`rabbit_auth_backend_internal:delete_user(<<"%s">>, <<"test">>).`, name)) })
}

// erlangText escapes a text for a literal of Erlang.
func erlangText(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s)
}

// Kill ends the node by a crash and starts it again. It first makes RabbitMQ store its queues and
// the names of its quorum queues: RabbitMQ 3.10 writes both some time after the declaration (Mnesia
// its log of transactions, dets its tables).
func (n RabbitMQNode) Kill() {
	n.t.Helper()
	n.Control("eval", "_ = mnesia:sync_log(), [ok = dets:sync(Table) || Table <- dets:all()].")
	n.Restart(os.Kill)
}

// OwnRabbitMQ returns a RabbitMQ of the test binary's own, with an empty virtual host.
// syscall.SIGTERM makes it shut down in order.
func OwnRabbitMQ(t testing.TB) RabbitMQNode {
	t.Helper()
	n := RabbitMQNode{own(t, ownRabbitMQ)}
	n.addVhost()
	return n
}

// SharedRabbitMQ returns the same RabbitMQ to tests that run beside each other. They have a virtual
// host each, and rights that tests do not have on the broker of [RabbitMQ]: each may create users,
// virtual hosts and policies of its own. A test that changes what others see, or stops the node,
// needs [OwnRabbitMQ].
func SharedRabbitMQ(t testing.TB) RabbitMQNode {
	t.Helper()
	n := RabbitMQNode{share(t, ownRabbitMQ)}
	n.addVhost()
	return n
}

// addVhost creates a virtual host.
func (n RabbitMQNode) addVhost() {
	n.t.Helper()
	vhost := unique()
	n.URL = n.server.url(vhost)
	server, err := url.Parse(n.URL)
	must(n.t, err)
	must(n.t, control{server, n.server.control}.create(vhost))
}

var ownRabbitMQ = sync.OnceValues(func() (*server, error) {
	mapper, err := freePort()
	if err != nil {
		return nil, err
	}
	s, err := newRabbitMQ(mapper, "")
	if err != nil {
		return nil, err
	}
	return s, s.startMapper(mapper)
})

// newRabbitMQ returns a node that is known to the port mapper on a port. Nodes that have their
// cookie in the same folder can be a cluster. An empty cookies is a folder of the node's own.
func newRabbitMQ(mapper int, cookies string) (*server, error) {
	program, err := rabbitProgram("rabbitmq-server")
	if err != nil {
		return nil, err
	}
	s, err := newServer("rabbitmq")
	if err != nil {
		return nil, err
	}
	ports := [3]int{s.port, 0, mapper} // of the broker, of the node, of the port mapper
	if ports[1], err = freePort(); err != nil {
		return nil, err
	}
	s.url = func(vhost string) string { return fmt.Sprintf("amqp://guest:guest@%s/%s", loopback(s.port), vhost) }
	s.answers = func() error {
		c, err := amqp.Dial(s.url(""))
		if err != nil {
			return err
		}
		return c.Close()
	}
	environment, err := rabbitEnvironment(s.dir, cmp.Or(cookies, s.dir), ports)
	if err != nil {
		return nil, err
	}
	s.program = func() *exec.Cmd {
		cmd := exec.Command(program)
		cmd.Env = environment
		return cmd
	}
	s.control = func(args ...string) error {
		if args[0] == "eval" && len(args) == 2 {
			if answered, err := erlCall(ports[0], environment, args[1]); answered {
				return err
			}
		}
		return rabbitmqctl(filepath.Join(filepath.Dir(program), "rabbitmqctl"), environment, args...)
	}
	return s, nil
}

// rabbitEnvironment writes the node's configuration and returns the variables that name it.
func rabbitEnvironment(dir, cookies string, ports [3]int) ([]string, error) {
	in := func(name string) string { return filepath.Join(dir, name) }
	// Without this limit a full disk would block senders.
	config := fmt.Sprintf("listeners.tcp.default = %s\nlog.console = true\nlog.console.level = warning\n"+
		"log.file = false\ndisk_free_limit.absolute = 64MB\n", loopback(ports[0]))
	if err := os.WriteFile(in("rabbitmq.conf"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	// A node that starts may look for the exchange of a queue's dead letters before the exchange is
	// there, and then waits three minutes. No setting of rabbitmq.conf is shorter.
	advanced := "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].\n"
	if err := os.WriteFile(in("advanced.config"), []byte(advanced), 0o600); err != nil {
		return nil, err
	}
	return append(os.Environ(),
		"HOME="+cookies,
		"RABBITMQ_NODENAME="+rabbitNode(ports[0]),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", ports[1]),
		fmt.Sprintf("ERL_EPMD_PORT=%d", ports[2]),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"RABBITMQ_CONFIG_FILE="+in("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+in("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE="+in("none"),
		"RABBITMQ_MNESIA_BASE="+in("data"),
		"RABBITMQ_LOG_BASE="+in("log"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+in("plugins"),
		"RABBITMQ_PID_FILE="+in("pid"),
		"RUNNING_UNDER_SYSTEMD=1", // the script becomes the server instead of waiting for it
	), nil
}

// rabbitNode returns the name of the Erlang node of the broker on a port.
func rabbitNode(port int) string { return fmt.Sprintf("holdfast-%d@localhost", port) }

// startMapper starts a port mapper for the node. The system's may refuse it, and one that
// the node starts itself would outlive the tests.
func (s *server) startMapper(port int) error {
	mapper := exec.Command("epmd", "-address", "127.0.0.1", "-port", fmt.Sprint(port))
	if _, err := s.keeper.start(mapper); err != nil {
		return fmt.Errorf("start Erlang's port mapper: %w", err)
	}
	return nil
}

// rabbitProgram returns the path of a program of the server. Debian's programs on the PATH run
// for root and rabbitmq only.
func rabbitProgram(name string) (string, error) {
	if dir := os.Getenv(programsVariable); dir != "" {
		return exec.LookPath(filepath.Join(dir, name))
	}
	path := "/usr/lib/rabbitmq/bin/" + name
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", errors.New("a test that restarts RabbitMQ needs its programs on this machine: " +
			"install rabbitmq-server, as \"make brokers-up\" does on Debian and Ubuntu")
	}
	return path, nil
}

// erlCall evaluates an expression by erl_call of Erlang, which takes 0.1 s. rabbitmqctl takes a
// second, mostly of CPU. It reports false if no node answered, or no erl_call is installed.
func erlCall(port int, environment []string, expression string) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	caller := fmt.Sprintf("call%d-%d", os.Getpid(), erlCalls.Add(1))
	cmd := exec.CommandContext(ctx, "erl_call", "-h", caller, "-sname", rabbitNode(port), "-e")
	cmd.Env = environment
	cmd.Stdin = strings.NewReader(expression + "\n")
	out, err := cmd.Output()
	if err != nil || len(out) == 0 {
		return false, nil
	}
	if !strings.HasPrefix(string(out), "{ok,") {
		return true, fmt.Errorf("evaluate %s: %s", expression, out)
	}
	return true, nil
}

var erlCalls atomic.Int64

func rabbitmqctl(program string, environment []string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"-q"}, args...)...)
	cmd.Env = environment
	cmd.WaitDelay = stopTimeout // the program may have started others
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("rabbitmqctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
