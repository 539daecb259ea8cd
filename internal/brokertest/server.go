package brokertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// server is a broker's process that ends with this one, in whatever way that ends.
type server struct {
	name    string
	port    int
	dir     string           // for its files, removed at the end
	program func() *exec.Cmd // returns the command of one run
	answers func() error     // returns nil when the server is ready
	url     func(part string) string
	user    func(*exec.Cmd)            // makes a process run as the server's user
	own     func(path string) error    // gives that user a file
	control func(args ...string) error // the broker's own command, if it has one

	inUse   sync.Mutex // held by the test that uses the server
	keeper  io.Writer
	helpers []int         // their process ids
	ended   chan struct{} // closed when process has ended
	process *os.Process
}

const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
)

// newServer returns a server with an unused port, and a folder that is removed at the end of this process.
func newServer(name string) (*server, error) {
	dir, err := os.MkdirTemp("", "holdfast-"+name+"-")
	if err != nil {
		return nil, err
	}
	s := &server{name: name, dir: dir, ended: make(chan struct{}), user: func(*exec.Cmd) {}, own: func(string) error { return nil }}
	close(s.ended)
	if s.port, err = freePort(); err != nil {
		return nil, err
	}
	s.keeper, err = newKeeper(dir)
	return s, err
}

// start returns when the server answers. It restarts a server that ends meanwhile: a killed
// one keeps its port or its memory for a moment.
func (s *server) start() error {
	over := time.After(startTimeout)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for launches := 0; ; {
		if !s.running() {
			if launches++; launches > 20 {
				return fmt.Errorf("%s does not stay up:\n%s", s.name, s.log())
			}
			if err := s.launch(s.program()); err != nil {
				return err
			}
		}
		err := s.answers()
		if err == nil {
			return nil
		}
		select {
		case <-look.C:
		case <-over:
			return fmt.Errorf("%s does not answer: %w:\n%s", s.name, err, s.log())
		}
	}
}

func (s *server) running() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

func (s *server) launch(cmd *exec.Cmd) error {
	output, err := os.OpenFile(s.output(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer output.Close() //nolint:errcheck // the server has its own
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, output, output
	s.user(cmd)
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // ended by a signal
	}()
	s.ended, s.process = ended, cmd.Process
	return s.keep(cmd.Process.Pid)
}

// keep sends the keeper the processes to end.
func (s *server) keep(pids ...int) error {
	_, err := fmt.Fprintln(s.keeper, append(pids, s.helpers...))
	return err
}

// stop sends a signal and waits for the end.
func (s *server) stop(how os.Signal) error {
	if !s.running() {
		return nil
	}
	if err := s.process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.ended:
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("%s has not ended %v after signal %q", s.name, stopTimeout, how)
	}
}

func (s *server) output() string { return filepath.Join(s.dir, "output") }

// log returns the end of the server's output.
func (s *server) log() string {
	text, err := os.ReadFile(s.output())
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-40):], []byte("\n")))
}

// keep is run by a shell that outlives this process, with which its input ends. Each line of
// the input has the process groups to end; the last line counts.
const keep = `while read -r line; do last=$line; done
for group in $(echo "$last" | tr -d '[]'); do kill -s KILL -- "-$group" 2>/dev/null; done
sleep 1
rm -rf "$1"`

func newKeeper(dir string) (io.Writer, error) {
	cmd := exec.Command("sh", "-c", keep, "keeper", dir)
	ownGroup(cmd) // an interrupt from the keyboard must not end it
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return in, cmd.Start()
}

// freePort returns an unused port of this machine. It is below those that the system gives to
// outgoing connections, which might take it while the server is down.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 20000 + rand.IntN(12000)
		var l net.Listener
		if l, err = net.Listen("tcp", loopback(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
