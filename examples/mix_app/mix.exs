defmodule Shop.MixProject do
  use Mix.Project

  def project do
    [app: :shop_ex, version: "1.0.0", elixir: "~> 1.14", deps: deps()]
  end

  def application do
    [mod: {Shop.Application, []}, extra_applications: [:logger]]
  end

  # weir is a rebar3 project; mix compiles it with the rebar3 that it knows. Where mix has none yet:
  #   MIX_REBAR3=$(command -v rebar3) mix run
  defp deps do
    [{:weir, path: "../..", manager: :rebar3}]
  end
end
