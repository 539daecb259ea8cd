package servicecontrol

import (
	"cmp"
	"os"
	"strconv"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
)

// host names the instance of the endpoint, as the headers of its failed and audited messages do.
type host struct {
	id      string // 32 hexadecimal digits, as in headers
	name    string
	machine string
}

func newHost(h endpoint.Host) host {
	machine, _ := os.Hostname() // "" after an error
	return host{id: h.ID, name: h.Name, machine: cmp.Or(machine, "unknown")}
}

// guid returns the id as JSON bodies need it, with hyphens.
func (h host) guid() string {
	return h.id[:8] + "-" + h.id[8:12] + "-" + h.id[12:16] + "-" + h.id[16:20] + "-" + h.id[20:]
}

// properties describe the process. ServiceControl stores them and shows none.
func (h host) properties() map[string]string {
	program, _ := os.Executable() // "" after an error
	return map[string]string{
		"Machine": h.machine, "ProcessID": strconv.Itoa(os.Getpid()), "PathToExecutable": program,
		"UserName": cmp.Or(os.Getenv("USER"), os.Getenv("USERNAME")),
	}
}

// addressOf returns the address of a queue for other programs.
func addressOf(conn transport.Conn, queue string) string {
	if a, ok := conn.(transport.Addresser); ok {
		return a.Address(queue)
	}
	return queue
}
