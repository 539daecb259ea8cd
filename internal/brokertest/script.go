package brokertest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// newScript returns a server written in JavaScript, a file of the folder node. The variable PORT
// is the port of the loopback interface for it to listen on, and DATA a folder that outlives
// restarts. When it listens it prints the line "listening URL".
func newScript(name, file string, args ...string) (*server, error) {
	folder, err := scriptFolder()
	if err != nil {
		return nil, err
	}
	node, err := nodeProgram(folder)
	if err != nil {
		return nil, err
	}
	s, err := newServer(name)
	if err != nil {
		return nil, err
	}
	s.program = func() *exec.Cmd {
		cmd := exec.Command(node, append([]string{filepath.Join(folder, file)}, args...)...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("PORT=%d", s.port), "DATA="+s.dir)
		return cmd
	}
	s.url = func(string) string { return loopback(s.port) }
	s.answers = s.listens
	return s, nil
}

// scriptFolder returns the folder node of this package's sources. A test runs in the folder of its
// own package.
func scriptFolder() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		folder := filepath.Join(at, "internal", "brokertest", "node")
		if _, err := os.Stat(filepath.Join(folder, "package-lock.json")); err == nil {
			return folder, nil
		}
		above := filepath.Dir(at)
		if above == at {
			return "", errors.New("the test does not run inside Holdfast's sources, where internal/brokertest/node is")
		}
		at = above
	}
}

// nodeProgram returns the path of a Node.js. It installs the packages of the scripts if they are
// missing.
func nodeProgram(folder string) (string, error) {
	var said bytes.Buffer
	cmd := exec.Command("bash", filepath.Join(folder, "..", "..", "..", "scripts", "node.sh"))
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("scripts/node.sh: %w: %s", err, said.String())
	}
	return strings.TrimSpace(string(out)), nil
}
