package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/bench"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// asbOptions are those that the driver has and a URL may set.
var asbOptions = []string{"emulator", "administration", "hierarchy", "max_message_size"}

// asbTarget reads sb://KEYNAME:KEY@NAMESPACE. Without a key the credential is that of the environment: a service principal's, a
// workload's or a managed identity, or that of the Azure CLI.
func asbTarget(raw string) (target, error) {
	u, err := parseURL(raw)
	if err != nil {
		return target{}, err
	}
	for name := range u.Query() {
		if !slices.Contains(asbOptions, name) {
			return target{}, fmt.Errorf("unknown option %q: want one of %q", name, asbOptions)
		}
	}
	if strings.Trim(u.Path, "/") != "" {
		return target{}, errors.New("nothing goes after the host: ?hierarchy=NAME has all queues and topics below that name")
	}
	t := &asb.Transport{Hierarchy: u.Query().Get("hierarchy"), Administration: u.Query().Get("administration")}
	if size := u.Query().Get("max_message_size"); size != "" {
		if t.MaxMessageSize, err = strconv.Atoi(size); err != nil {
			return target{}, fmt.Errorf("max_message_size %q: want bytes", size)
		}
	}
	if err := identify(t, u); err != nil {
		return target{}, err
	}
	return target{
		Transport: t, broker: "Azure Service Bus", lists: true,
		bench: func(int) bench.Broker { return bench.ServiceBus(t) },
		lease: &t.LockDuration,
	}, nil
}

// identify sets where to connect to, and as whom.
func identify(t *asb.Transport, u *url.URL) error {
	emulator := u.Query().Get("emulator") == "true"
	key, keyed := u.User.Password()
	switch {
	case keyed:
		t.ConnectionString = fmt.Sprintf("Endpoint=sb://%s;SharedAccessKeyName=%s;SharedAccessKey=%s", u.Host, u.User.Username(), key)
		if emulator {
			t.ConnectionString += ";UseDevelopmentEmulator=true"
		}
		return nil
	case u.User != nil:
		return errors.New("a name without a key: write sb://KEYNAME:KEY@host, or sb://host to use the environment's credential")
	case emulator:
		return errors.New("an emulator wants a key: write sb://KEYNAME:KEY@host?emulator=true")
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return fmt.Errorf("no credential in the environment: %w", err)
	}
	t.Namespace, t.Credential = u.Host, credential
	return nil
}

// connectionString is the target of what the portal shows.
func connectionString(raw string) (target, error) {
	t := &asb.Transport{ConnectionString: raw}
	return target{
		Transport: t, broker: "Azure Service Bus", lists: true,
		bench: func(int) bench.Broker { return bench.ServiceBus(t) },
		lease: &t.LockDuration,
	}, nil
}
