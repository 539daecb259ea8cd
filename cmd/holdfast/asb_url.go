package main

import (
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/bench"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// asbTarget reads a URL of the driver. Without a key the credential is that of the environment: a service principal's, a
// workload's or a managed identity, or that of the Azure CLI.
func asbTarget(raw string) (target, error) {
	t, err := asb.ParseURL(raw)
	if err != nil {
		return target{}, err
	}
	if t.Namespace != "" {
		if t.Credential, err = azidentity.NewDefaultAzureCredential(nil); err != nil {
			return target{}, fmt.Errorf("no credential in the environment: %w", err)
		}
	}
	return serviceBusTarget(t), nil
}

// connectionString is the target of the portal's connection string.
func connectionString(raw string) (target, error) {
	return serviceBusTarget(&asb.Transport{ConnectionString: raw}), nil
}

func serviceBusTarget(t *asb.Transport) target {
	return target{
		Transport: t, broker: "Azure Service Bus", lists: true,
		bench: func(int) bench.Broker { return bench.ServiceBus(t) },
		lease: &t.LockDuration,
	}
}
