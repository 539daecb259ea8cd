package asb

import (
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Addresser = (*conn)(nil)

// Address implements [transport.Addresser]: the path of the queue, with the hierarchy in front.
func (c *conn) Address(queue string) string {
	path, dead, err := c.naming.queue(queue)
	if err != nil {
		return queue
	}
	if dead {
		path += deadLetters
	}
	return path
}

// ShortName implements [transport.Addresser]: the path of the queue without the hierarchy.
func (c *conn) ShortName(address string) string {
	name := c.naming.short(address)
	if name == address {
		return address
	}
	if _, _, err := c.naming.queue(address); err != nil {
		return address
	}
	return name
}

// short returns a name or path without the hierarchy; with it, where the rest begins with the
// hierarchy again, and would be read as another path.
func (n naming) short(path string) string {
	if name, ok := strings.CutPrefix(path, n.prefix); ok && !strings.HasPrefix(name, n.prefix) {
		return name
	}
	return path
}
