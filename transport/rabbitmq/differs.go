package rabbitmq

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// add puts what else differs of a part to what has been found of it.
func add(findings []Finding, f Finding) []Finding {
	if n := len(findings); n > 0 && findings[n-1].Kind == f.Kind && findings[n-1].Name == f.Name {
		findings[n-1].Detail += "; " + strings.TrimPrefix(f.Detail, "it exists with ")
		return findings
	}
	return append(findings, f)
}

// adapt takes over the argument that differs, so that the next comparison finds the next one: the broker
// names one at a time. It is false when there is no more to find.
func (p *part) adapt(err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return false
	}
	said := inequivalent.FindStringSubmatch(e.Reason)
	if said == nil || !strings.HasPrefix(said[1], "x-") || slices.Contains(p.adapted, said[1]) {
		return false
	}
	name, args := said[1], make(amqp.Table, len(p.args)+1)
	maps.Copy(args, p.args) // others may hold it
	p.adapted = append(p.adapted, name)
	delete(args, name)
	if is := argument.FindStringSubmatch(said[3]); is != nil {
		n, err := strconv.ParseInt(is[1], 10, 64)
		if is[2] == "longstr" || err != nil {
			args[name] = is[1]
		} else {
			args[name] = n
		}
	}
	p.args = args
	return name != "x-queue-type" // other arguments than those of its type would be refused
}

var argument = regexp.MustCompile(`^(?:the value )?'(.*?)'(?: of type '?(\w+)'?)?$`)
