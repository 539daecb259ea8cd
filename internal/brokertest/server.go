package brokertest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

	variables []string // of the environment, beside those of this process

	inUse    sync.RWMutex // by tests: one alone, or several that share it
	starting sync.Mutex   // held by one of those that share
	keeper   *keeper
	ended    chan struct{} // closed when process has ended
	process  *os.Process
}

const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
)

// newServer returns a server with an unused port, and a folder that is removed at the end of this
// process.
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
	ended, err := s.keeper.start(cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	s.ended, s.process = ended, cmd.Process
	return nil
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

// listens returns nil when the server has printed its URL and listens there.
func (s *server) listens() error {
	if !strings.Contains(s.log(), "listening ") {
		return errors.New("it does not listen yet")
	}
	c, err := net.Dial("tcp", s.url(""))
	if err != nil {
		return err
	}
	return c.Close()
}
