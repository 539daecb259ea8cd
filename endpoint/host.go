package endpoint

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// Host names the place where an endpoint runs. ServicePulse shows one instance of the endpoint for
// each pair of endpoint and ID, and takes its name to be constant: instances with one ID must have
// one Name. Processes of one endpoint with the same Host are one instance: if one ends, its silence
// is not noticed while another runs.
type Host struct {
	// ID is a UUID that is the same after a restart, with or without hyphens. Default: derived from
	// the endpoint's name and Name. Without Name it must be empty.
	ID string
	// Name is for people: one line of at most 200 bytes. Default: the name of the machine. In a
	// cluster where each process gets a new machine name, a constant Name keeps the list of
	// instances short.
	Name string
}

// in returns the host of an endpoint for headers.
func (h Host) in(endpoint string) fault.Host {
	machine := machineName()
	name := cmp.Or(h.Name, machine)
	id, ok := hostID(h.ID)
	if !ok {
		sum := sha256.Sum256([]byte(endpoint + "\x00" + name))
		id = hex.EncodeToString(sum[:16])
	}
	return fault.Host{Endpoint: endpoint, Machine: machine, HostID: id, DisplayName: name}
}

const maxHostName = 200 // bytes

// validate reports the mistakes of h.
func (h Host) validate(bad func(format string, args ...any)) {
	if h.Name != "" && strings.TrimSpace(h.Name) == "" || len(h.Name) > maxHostName ||
		!utf8.ValidString(h.Name) || strings.ContainsFunc(h.Name, unicode.IsControl) {
		bad("Host.Name %.300q cannot be shown: use one line of UTF-8, of at most %d bytes, that is not blank", h.Name, maxHostName)
	}
	if h.ID == "" {
		return
	}
	if _, ok := hostID(h.ID); !ok {
		bad("Host.ID %q is no UUID: leave it empty for a derived one", h.ID)
	}
	if h.Name == "" {
		bad("Host.ID is set, but Host.Name is not: the name of the machine may change while the ID stays")
	}
}

// hostID returns a UUID as 32 hexadecimal digits. ServiceControl refuses the UUID of zeros.
func hostID(text string) (id string, ok bool) {
	id = strings.ToLower(text)
	if len(id) == 36 && id[8] == '-' && id[13] == '-' && id[18] == '-' && id[23] == '-' {
		id = strings.ReplaceAll(id, "-", "")
	}
	raw, err := hex.DecodeString(id)
	return id, err == nil && len(raw) == 16 && strings.Trim(id, "0") != ""
}

func machineName() string {
	name, _ := os.Hostname() // "" after an error
	return cmp.Or(name, "unknown")
}
