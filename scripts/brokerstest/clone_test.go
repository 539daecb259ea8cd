// Package brokerstest tests scripts/brokers.sh on a bad machine: beside other clones, interrupted,
// without network.
package brokerstest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// limit bounds hangs only.
const limit = 10 * time.Minute

// clone is a copy of the scripts with a state folder of its own. Its PATH has all programs of this
// machine, but for the stand-ins of its folder bin: the package installers and docker, which fail
// and record their calls, and a go that copies the probe.
type clone struct {
	t   *testing.T
	dir string
	env []string
	as  *syscall.Credential // of an ordinary user, or nil
}

// script is a program that records its call and fails.
const script = `#!/bin/sh
echo "${0##*/} $*" >>"$HOME/calls"
exit 100
`

func newClone(t *testing.T) *clone {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast clone-") //nolint:usetesting // no other user enters the folder of t.TempDir
	must(t, err)
	must(t, os.Chmod(dir, 0o755)) //nolint:gosec // user postgres enters it
	c := &clone{t: t, dir: dir}
	c.env = []string{
		"HOME=" + dir,
		"TMPDIR=" + c.path("tmp"),
		"PATH=" + c.path("bin") + ":" + os.Getenv("PATH"),
		"HOLDFAST_AMQP_PORT=" + unusedPort(t),
		"HOLDFAST_POSTGRES_PORT=" + unusedPort(t),
	}
	for _, folder := range []string{"bin", "tmp", "scripts", "internal/brokertest/node/node_modules"} {
		must(t, os.MkdirAll(c.path(folder), 0o755)) //nolint:gosec // as above
	}
	must(t, os.Chmod(c.path("tmp"), 0o777)) //nolint:gosec // as the system's
	scripts, err := filepath.Glob("../*.sh")
	must(t, err)
	for _, file := range scripts {
		c.write("scripts/"+filepath.Base(file), read(t, file))
	}
	c.write("compose.yaml", read(t, "../../compose.yaml"))
	lock := read(t, "../../internal/brokertest/node/package-lock.json")
	c.write("internal/brokertest/node/package-lock.json", lock)
	c.write("internal/brokertest/node/node_modules/.holdfast", lock)
	c.write("bin/node", "#!/bin/sh\necho v22.20.0\n")
	c.write("bin/go", fmt.Sprintf("#!/bin/sh\ncp '%s' \"$3\"\n", probe(t))) // go build -o FILE ./scripts/probe
	for _, name := range []string{"apt-get", "npm", "docker", "sudo"} {
		c.write("bin/"+name, script)
	}
	t.Cleanup(c.remove)
	return c
}

// remove stops the clone's brokers, and fails the test if a process of the clone is left.
func (c *clone) remove() {
	if said, err := c.run("down"); err != nil {
		c.t.Errorf("down: %v\n%s", err, said)
	}
	until(c.t, func() error {
		if left := c.processes(); len(left) > 0 {
			return fmt.Errorf("processes are left after down: %s", strings.Join(left, ", "))
		}
		return nil
	})
	must(c.t, os.RemoveAll(c.dir))
}

func (c *clone) path(name string) string { return filepath.Join(c.dir, name) }

func (c *clone) write(name, content string) {
	c.t.Helper()
	must(c.t, os.WriteFile(c.path(name), []byte(content), 0o755)) //nolint:gosec // programs
}

// set adds variables, which replace earlier ones.
func (c *clone) set(variables ...string) { c.env = append(c.env, variables...) }

// hide replaces the PATH by links to all its programs but for those named.
func (c *clone) hide(names ...string) {
	c.t.Helper()
	links := c.path("links")
	must(c.t, os.Mkdir(links, 0o755)) //nolint:gosec // other users run them
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		programs, err := filepath.Glob(filepath.Join(folder, "*"))
		must(c.t, err)
		for _, program := range programs {
			if name := filepath.Base(program); !slices.Contains(names, name) {
				_ = os.Symlink(program, filepath.Join(links, name)) // the first of the PATH counts
			}
		}
	}
	c.set("PATH=" + c.path("bin") + ":" + links)
}

// ordinary makes the clone one of an ordinary user, if the tests run as root.
func (c *clone) ordinary() {
	c.t.Helper()
	if os.Getuid() != 0 {
		return
	}
	u, err := user.LookupId("65534") // the user without rights of each Linux
	must(c.t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	must(c.t, err)
	c.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	must(c.t, filepath.WalkDir(c.dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(uid), int(uid)))
	}))
}

func (c *clone) command(arg string) *exec.Cmd {
	cmd := exec.Command("bash", "scripts/brokers.sh", arg)
	cmd.Dir, cmd.Env = c.dir, c.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.as}
	cmd.WaitDelay = limit
	return cmd
}

// run returns the script's output, that on standard error included.
func (c *clone) run(arg string) (said string, err error) {
	cmd := c.command(arg)
	over := time.AfterFunc(limit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer over.Stop()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// up returns the variables that it exports.
func (c *clone) up() map[string]string {
	said, err := c.run("up")
	if err != nil {
		c.t.Errorf("up: %v\n%s", err, said)
	}
	return exports(said)
}

// exports returns the variables of the lines "export NAME=value".
func exports(said string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(said) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "export "); ok {
			name, value, _ := strings.Cut(text, "=")
			found[name] = strings.ReplaceAll(value, `\`, "")
		}
	}
	return found
}

// interrupt sends a signal to an up when it has said a line: to the whole group, as the keyboard
// does, or to it alone.
func (c *clone) interrupt(line string, signal syscall.Signal, group bool) {
	c.t.Helper()
	cmd := c.command("up")
	out, err := cmd.StderrPipe()
	must(c.t, err)
	must(c.t, cmd.Start())
	pid := cmd.Process.Pid
	if group {
		pid = -pid
	}
	var said bytes.Buffer
	lines := bufio.NewScanner(out)
	for found := false; lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if !found && strings.Contains(lines.Text(), line) {
			found = true
			must(c.t, syscall.Kill(pid, signal))
		}
	}
	if err := cmd.Wait(); err == nil {
		c.t.Errorf("up was not interrupted:\n%s", said.String())
	}
}

// calls returns the calls of the stand-ins for package installers and docker.
func (c *clone) calls() string {
	content, err := os.ReadFile(c.path("calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Error(err)
	}
	return string(content)
}

// processes returns the processes that the clone's scripts have started: their home is the clone's.
func (c *clone) processes() []string {
	var found []string
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	must(c.t, err)
	for _, file := range files {
		environment, err := os.ReadFile(file)
		if err == nil && bytes.Contains(environment, []byte("="+c.dir)) {
			command, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline")) // the process may have ended
			found = append(found, strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return found
}

// probe builds scripts/probe once.
func probe(t *testing.T) string {
	t.Helper()
	path, err := built()
	must(t, err)
	return path
}

var built = sync.OnceValues(func() (string, error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-probe-%d", os.Getpid()))
	cmd := exec.Command("go", "build", "-o", path, "../probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, os.Chmod(path, 0o755) //nolint:gosec // other users run it
})

func TestMain(m *testing.M) {
	if signal.Ignored(syscall.SIGINT) { // as in the background of a script; scripts that are started here would ignore it too
		signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	}
	code := m.Run()
	if path, err := built(); err == nil {
		_ = os.Remove(path) // in the folder for temporary files
	}
	os.Exit(code)
}

// unusedPort returns a port on which nothing listens.
func unusedPort(t *testing.T) string {
	t.Helper()
	l := listen(t)
	must(t, l.Close())
	return portOf(l)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return l
}

func portOf(l net.Listener) string { return strconv.Itoa(l.Addr().(*net.TCPAddr).Port) }

// until waits until f returns nil.
func until(t *testing.T, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	must(t, err)
	return string(content)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
