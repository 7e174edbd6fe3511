defmodule Shop.Application do
  @moduledoc "Starts the shop and makes its limiter. weir, a dependency, is started before it."
  use Application

  @impl true
  def start(_type, _args) do
    children = [
      {:weir, limiters: %{login: %{rate: {5, :minute}, scope: :exact}}}
    ]

    Supervisor.start_link(children, strategy: :one_for_one, name: Shop.Supervisor)
  end
end
