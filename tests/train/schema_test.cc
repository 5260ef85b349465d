#include "train/schema.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "train/schema_suggest.h"

namespace meshfold::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

enum class Color { kRed, kBlue };

struct Part {
  std::string path;
  double weight = 1.0;
};

// One variable of every type.
struct Variables {
  bool flag = false;
  int64_t count = 3;
  int64_t ranks = 0;
  double rate = 1e-3;
  std::string text = "a b";
  int64_t size = int64_t{4} << 30;
  Color color = Color::kRed;
  std::vector<int64_t> list = {1, 2};
  std::vector<Part> parts;
};

void DeclarePart(Part& part, Schema& schema) {
  schema.String("path", &part.path, "Where.");
  schema.Float("weight", &part.weight, "How much.").Above(0);
}

void Declare(Variables& v, Schema& s) {
  s.Section("optimizer", "Updates.");
  s.Bool("flag", &v.flag, "A flag.");
  s.Int("count", &v.count, "A count.").AtLeast(0).AtMost(10).Unit("steps");
  s.Float("rate", &v.rate, "A rate.").Above(0).AtMost(1).Synonyms({"learning_rate"});
  s.String("text", &v.text, "A text.");
  s.Section("parallel", "Layout.");
  s.Int("ranks", &v.ranks, "Ranks.").AtLeast(1).Word("auto");
  s.Choice<Color>("color", &v.color, {{"red", Color::kRed}, {"blue", Color::kBlue}}, "A color.");
  s.Section("parallel.zero", "Inside.");
  s.Bytes("size", &v.size, "A size.");
  s.IntList("list", &v.list, "A list.").AtLeast(0);
  s.Records<Part>("parts", &v.parts, DeclarePart, "Parts.");
}

// Reads `yaml` into fresh variables and returns the error.
std::string ErrorOf(const std::string& yaml) {
  Variables v;
  Schema schema;
  Declare(v, schema);
  const absl::Status status = schema.Read(yaml, "my.yaml");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << yaml << " was read";
  return std::string(status.message());
}

std::string SetErrorOf(const std::string& assignment) {
  Variables v;
  Schema schema;
  Declare(v, schema);
  const absl::Status status = schema.Set(assignment);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << assignment << " was taken";
  return std::string(status.message());
}

TEST(SchemaTest, ReadsEveryType) {
  Variables v;
  Schema schema;
  Declare(v, schema);
  const absl::Status status = schema.Read(R"(
optimizer:
  flag: true
  count: 7
  rate: 0.5
  text: "2e-5"
parallel:
  ranks: 4
  color: blue
  zero:
    size: 1.5 GiB
    list: [3, 0, 5]
    parts:
      - path: one
      - {path: two, weight: 2}
)",
                                          "my.yaml");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(v.flag);
  EXPECT_EQ(v.count, 7);
  EXPECT_EQ(v.rate, 0.5);
  EXPECT_EQ(v.text, "2e-5");
  EXPECT_EQ(v.ranks, 4);
  EXPECT_EQ(v.color, Color::kBlue);
  EXPECT_EQ(v.size, int64_t{3} << 29);
  EXPECT_EQ(v.list, (std::vector<int64_t>{3, 0, 5}));
  ASSERT_EQ(v.parts.size(), 2u);
  EXPECT_EQ(v.parts[0].path, "one");
  EXPECT_EQ(v.parts[0].weight, 1.0);
  EXPECT_EQ(v.parts[1].weight, 2.0);
  EXPECT_TRUE(schema.IsGiven("parallel.zero.size"));
  EXPECT_FALSE(schema.IsGiven("optimizer.size"));
}

TEST(SchemaTest, AbsentKeysAndEmptySectionsKeepTheirValues) {
  for (const std::string yaml : {"", "# nothing\n", "optimizer:\n", "optimizer: {}\nparallel:\n"}) {
    Variables v;
    Schema schema;
    Declare(v, schema);
    const absl::Status status = schema.Read(yaml, "my.yaml");
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(schema.ToYaml(), [] {
      Variables fresh;
      Schema same;
      Declare(fresh, same);
      return same.ToYaml();
    }());
  }
}

// Some YAML readers take 2e-5 for a text.
TEST(SchemaTest, EverySpellingOfANumberIsOne) {
  const std::vector<std::pair<std::string, double>> spellings = {
      {"2e-5", 2e-5}, {"1e-3", 1e-3}, {"1E-4", 1e-4}, {"2.0e-5", 2e-5}, {"1e-8", 1e-8},
      {"1e0", 1.0},   {"+0.5", 0.5},  {".25", 0.25},  {"1", 1.0},       {"1.", 1.0}};
  for (const auto& [text, value] : spellings) {
    Variables v;
    Schema schema;
    Declare(v, schema);
    const absl::Status status = schema.Read("optimizer:\n  rate: " + text, "my.yaml");
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(v.rate, value) << text;
  }
}

TEST(SchemaTest, WhatIsNoNumberIsRefusedWithKeyAndLine) {
  for (const std::string text : {"fast", "\"2e-5\"", "1e-3x", "0x1p-3", "inf", "nan", ".inf",
                                 "1_000", "1,5", "1e", "e5", "--1", "1-2", "true", "1 2"}) {
    EXPECT_THAT(ErrorOf("optimizer:\n  rate: " + text), HasSubstr("my.yaml:2: optimizer.rate is "));
  }
  EXPECT_EQ(ErrorOf("optimizer:\n  rate: fast"),
            "my.yaml:2: optimizer.rate is 'fast'; expected number, such as 2e-5");
  EXPECT_EQ(ErrorOf("optimizer:\n  rate: '1'"),
            "my.yaml:2: optimizer.rate is the quoted text '1'; expected number, such as 2e-5");
  EXPECT_THAT(ErrorOf("optimizer:\n  rate: 1e999"), HasSubstr("has no such number"));
  EXPECT_THAT(ErrorOf("optimizer:\n  rate: 1e-999"), HasSubstr("has no such number"));
}

TEST(SchemaTest, WholeNumbersAreWholeNumbers) {
  for (const std::string text :
       {"1_000", "64k", "1e3", "2.0", "0x10", "four", "''", "'4'", "[4]"}) {
    EXPECT_THAT(ErrorOf("optimizer:\n  count: " + text), HasSubstr("expected whole number (steps)"))
        << text;
  }
  EXPECT_EQ(ErrorOf("optimizer:\n  count: 9223372036854775808"),
            "my.yaml:2: optimizer.count is '9223372036854775808'; whole numbers have at most 63 "
            "bits");
}

TEST(SchemaTest, OutOfRangeNamesValueAndBounds) {
  EXPECT_EQ(ErrorOf("optimizer:\n  count: 11"),
            "my.yaml:2: optimizer.count is 11; it must be at least 0 and at most 10");
  EXPECT_EQ(ErrorOf("optimizer:\n  count: -1"),
            "my.yaml:2: optimizer.count is -1; it must be at least 0 and at most 10");
  EXPECT_EQ(ErrorOf("\n\noptimizer:\n  rate: 0.0"),
            "my.yaml:4: optimizer.rate is 0.0; it must be above 0 and at most 1");
  EXPECT_EQ(ErrorOf("parallel:\n  zero: {list: [1, -2]}"),
            "my.yaml:2: parallel.zero.list is -2; it must be at least 0");
}

TEST(SchemaTest, WordsStandForThemselves) {
  Variables v;
  v.ranks = 5;
  Schema schema;
  Declare(v, schema);
  ASSERT_TRUE(schema.Read("parallel: {ranks: auto}", "my.yaml").ok());
  EXPECT_EQ(v.ranks, 0);
  EXPECT_EQ(ErrorOf("parallel: {ranks: 0}"),
            "my.yaml:1: parallel.ranks is 0; it must be at least 1");
  EXPECT_THAT(ErrorOf("parallel: {ranks: all}"), HasSubstr("expected whole number or auto"));
  EXPECT_EQ(ErrorOf("parallel:\n  color: bleu"),
            "my.yaml:2: parallel.color is 'bleu'; expected one of red, blue; did you mean 'blue'?");
  EXPECT_THAT(ErrorOf("optimizer: {flag: yes}"),
              HasSubstr("optimizer.flag is 'yes'; expected true or false"));
  EXPECT_THAT(ErrorOf("parallel: {zero: {size: 4 gigs}}"),
              HasSubstr("is '4 gigs'; expected bytes, such as 1073741824 or 1GiB"));
}

TEST(SchemaTest, MisspeltKeysNameTheNearest) {
  EXPECT_EQ(ErrorOf("optimizer:\n  flag: true\n  rates: 0.1"),
            "my.yaml:3: unknown key 'optimizer.rates'; the nearest valid key is 'optimizer.rate'");
  EXPECT_THAT(ErrorOf("optimizer: {learning_rates: 1}"), HasSubstr("is 'optimizer.rate'"));
  EXPECT_THAT(ErrorOf("parallel: {zero_list: [1]}"), HasSubstr("is 'parallel.zero.list'"));
  EXPECT_THAT(ErrorOf("parallel_ranks: 4"), HasSubstr("is 'parallel.ranks'"));
  EXPECT_EQ(ErrorOf("optimiser:\n  rate: 1"),
            "my.yaml:1: unknown section 'optimiser'; the nearest valid key is 'optimizer'");
}

TEST(SchemaTest, RightKeysInTheWrongPlaceNameTheirSection) {
  EXPECT_EQ(ErrorOf("parallel:\n  rate: 0.1"),
            "my.yaml:2: unknown key 'parallel.rate'; 'rate' belongs to section 'optimizer'");
  EXPECT_EQ(ErrorOf("color: red"),
            "my.yaml:1: unknown key 'color'; 'color' belongs to section 'parallel'");
  EXPECT_EQ(ErrorOf("parallel:\n  learning_rate: 0.1"),
            "my.yaml:2: unknown key 'parallel.learning_rate'; 'learning_rate' belongs to "
            "'optimizer.rate'");
  EXPECT_EQ(ErrorOf("optimizer.rate: 0.1"),
            "my.yaml:1: unknown key 'optimizer.rate'; write 'rate' inside section 'optimizer'");
}

TEST(SchemaTest, RepeatedKeysAreRefused) {
  EXPECT_EQ(ErrorOf("optimizer:\n  rate: 0.1\n  flag: true\n  rate: 0.2"),
            "my.yaml:4: 'optimizer.rate' stands twice, first in line 2");
  EXPECT_EQ(ErrorOf("optimizer:\nparallel:\noptimizer:"),
            "my.yaml:3: 'optimizer' stands twice, first in line 1");
}

TEST(SchemaTest, ShapesThatDoNotFitAreRefused) {
  EXPECT_EQ(ErrorOf("optimizer: adam"),
            "my.yaml:1: section 'optimizer' is 'adam'; expected its keys");
  EXPECT_EQ(ErrorOf("just text"), "my.yaml:1: expected sections, found 'just text'");
  EXPECT_EQ(ErrorOf("- a\n- b"), "my.yaml:1: expected sections, found a list");
  EXPECT_EQ(ErrorOf("optimizer:\n  rate: [1, 2]"),
            "my.yaml:2: optimizer.rate is a list; expected number, such as 2e-5");
  EXPECT_EQ(ErrorOf("optimizer:\n  text: {a: b}"),
            "my.yaml:2: optimizer.text is a mapping; expected text");
  EXPECT_EQ(ErrorOf("optimizer:\n  rate:"),
            "my.yaml:2: optimizer.rate is empty; expected number, such as 2e-5");
  EXPECT_EQ(ErrorOf("parallel:\n  zero:\n    list: 4"),
            "my.yaml:3: parallel.zero.list is '4'; expected list of whole numbers");
  EXPECT_THAT(ErrorOf("parallel:\n  zero:\n    list: [[1]]"), HasSubstr("is a list with a list"));
  EXPECT_THAT(ErrorOf("optimizer:\n  [rate]: 1"),
              HasSubstr("my.yaml:2: a list cannot be a key of section 'optimizer'"));
}

TEST(SchemaTest, ErrorsInRecordsNameTheEntry) {
  const std::string head = "parallel:\n  zero:\n    parts:\n";
  EXPECT_EQ(ErrorOf(head + "      - path: a\n      - {path: b, weight: 0}"),
            "my.yaml:5: parallel.zero.parts[1].weight is 0; it must be above 0");
  EXPECT_EQ(ErrorOf(head + "      - pat: a"),
            "my.yaml:4: unknown key 'parallel.zero.parts[0].pat'; the nearest valid key is 'path'");
  EXPECT_THAT(ErrorOf(head + "      - a"),
              HasSubstr("is a list with 'a'; expected list of {path, weight}"));
}

TEST(SchemaTest, BrokenYamlNamesTheLine) {
  EXPECT_THAT(ErrorOf("optimizer:\n  rate: [1, 2\n"), HasSubstr("not valid YAML: "));
  EXPECT_THAT(ErrorOf("optimizer:\n  flag: true\n rate: 1\n"),
              HasSubstr("my.yaml:3: not valid YAML: "));
  EXPECT_THAT(ErrorOf("a: *nowhere"), HasSubstr("my.yaml:1: not valid YAML: "));
  EXPECT_EQ(ErrorOf("optimizer:\n---\nparallel:\n"), "my.yaml: not a single YAML document");
  EXPECT_EQ(ErrorOf(",a: b"), "my.yaml: not a single YAML document");
  EXPECT_EQ(ErrorOf("optimizer: {}\n]"), "my.yaml:2: not valid YAML: illegal flow end");
}

TEST(SchemaTest, HostileTextIsRefusedInTime) {
  EXPECT_THAT(ErrorOf(std::string(100000, '[')), HasSubstr("my.yaml"));
  EXPECT_THAT(ErrorOf(std::string(100000, '{')), HasSubstr("my.yaml"));
  EXPECT_THAT(ErrorOf("optimizer: " + std::string(40, '[') + std::string(40, ']')),
              HasSubstr("my.yaml:1: nested deeper than 32 levels"));
  EXPECT_THAT(ErrorOf(std::string((1 << 20) + 1, ' ')), HasSubstr("at most 1048576 are read"));
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last;
    for (int j = 1; j < 10; ++j) bomb += ", " + last;
    bomb += "]\n";
  }
  EXPECT_EQ(ErrorOf(bomb), "my.yaml: more than 100000 values, aliases expanded");
  EXPECT_THAT(ErrorOf("parallel: &p\n  zero: *p"), HasSubstr("my.yaml"));
  EXPECT_THAT(ErrorOf("optimizer: &o {text: [*o]}"), HasSubstr("nested deeper than 32 levels"));
  const std::string long_key = ErrorOf("optimizer:\n  " + std::string(900, 'r') + ": 1");
  EXPECT_THAT(long_key, HasSubstr("..."));
  EXPECT_LT(long_key.size(), 200u);
}

TEST(SchemaTest, AliasesOfSensibleSizeWork) {
  Variables v;
  Schema schema;
  Declare(v, schema);
  const absl::Status status =
      schema.Read("optimizer: {count: &n 4}\nparallel: {ranks: *n}", "my.yaml");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(v.ranks, 4);
}

TEST(SchemaTest, SetUsesTheSameDeclarations) {
  Variables v;
  Schema schema;
  Declare(v, schema);
  for (const std::string assignment :
       {"optimizer.rate=2e-5", "optimizer.text=a: {b", "parallel.zero.size=2MiB",
        "parallel.zero.list=[4, 5]", "parallel.zero.parts=[{path: a=b, weight: 3}]",
        "parallel.color=blue", "optimizer.flag=true"}) {
    const absl::Status status = schema.Set(assignment);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(v.rate, 2e-5);
  EXPECT_EQ(v.text, "a: {b");
  EXPECT_EQ(v.size, 2 << 20);
  EXPECT_EQ(v.list, (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(v.parts.at(0).path, "a=b");
  EXPECT_EQ(v.color, Color::kBlue);
  EXPECT_TRUE(v.flag);
  ASSERT_TRUE(schema.Set("optimizer.text=").ok());
  EXPECT_EQ(v.text, "");
}

TEST(SchemaTest, SetErrorsNameTheOverride) {
  EXPECT_EQ(SetErrorOf("optimizer.rate=fast"),
            "--set optimizer.rate is 'fast'; expected number, such as 2e-5");
  EXPECT_EQ(SetErrorOf("optimizer.count=12"),
            "--set optimizer.count is 12; it must be at least 0 and at most 10");
  EXPECT_EQ(SetErrorOf("optimizer.rat=1"),
            "--set: unknown key 'optimizer.rat'; the nearest valid key is 'optimizer.rate'");
  EXPECT_EQ(SetErrorOf("rate=1"),
            "--set: unknown key 'rate'; 'rate' belongs to section 'optimizer'");
  EXPECT_EQ(SetErrorOf("optimizer.rate"), "--set 'optimizer.rate' is not section.key=value");
  EXPECT_EQ(SetErrorOf("parallel.zero=1"), "--set parallel.zero is a section; set one of its keys");
  EXPECT_THAT(SetErrorOf("parallel.zero.list=[1"), HasSubstr("--set:1: not valid YAML"));
  EXPECT_EQ(SetErrorOf("parallel.zero.list=[a]"),
            "--set: parallel.zero.list is 'a'; expected list of whole numbers");
}

TEST(SchemaTest, YamlReadsBackTheSame) {
  Variables v;
  v.flag = true;
  v.rate = 2e-5;
  v.text = "tab\t \"quote\" : # \xc3\xa9 \\ true";
  v.ranks = 0;
  v.parts = {{"python:stdlib", 0.1}, {"null", 3}};
  Schema schema;
  Declare(v, schema);
  const std::string yaml = schema.ToYaml();
  EXPECT_THAT(yaml, HasSubstr("  rate: 2e-05\n"));
  EXPECT_THAT(yaml, HasSubstr("  ranks: auto\n"));
  EXPECT_THAT(yaml, HasSubstr("  zero:\n    size: 4GiB\n    list: [1, 2]\n"));
  Variables read;
  Schema again;
  Declare(read, again);
  const absl::Status status = again.Read(yaml, "resolved");
  ASSERT_TRUE(status.ok()) << status << "\n" << yaml;
  EXPECT_EQ(again.ToYaml(), yaml);
  EXPECT_EQ(read.text, v.text);
  EXPECT_EQ(read.parts.at(1).path, "null");
  for (const std::string text :
       {"", "true", "Null", "~", "123", "1e5", "a b", "a:b", "- x", "#x", "'", "\"", "on",
        "runs/a-b_c.1", "line\nbreak", "e5", "*a", "&a"}) {
    v.text = text;
    ASSERT_TRUE(again.Read(schema.ToYaml(), "resolved").ok()) << schema.ToYaml();
    EXPECT_EQ(read.text, text);
  }
}

TEST(SchemaTest, FloatsAreShortAndExact) {
  EXPECT_EQ(FloatText(2e-5), "2e-05");
  EXPECT_EQ(FloatText(0.1), "0.1");
  EXPECT_EQ(FloatText(1), "1.0");
  EXPECT_EQ(FloatText(1e-8), "1e-08");
  EXPECT_EQ(std::stod(FloatText(1.0 / 3)), 1.0 / 3);
}

TEST(SchemaTest, MarkdownHasARowAKey) {
  Variables v;
  Schema schema;
  Declare(v, schema);
  const std::string doc = schema.ToMarkdown();
  EXPECT_THAT(doc, HasSubstr("## `parallel.zero`\n\nInside.\n"));
  EXPECT_THAT(doc, HasSubstr("| `optimizer.count` | whole number | steps | `3` | at least 0 and at "
                             "most 10 | A count. |\n"));
  EXPECT_THAT(doc,
              HasSubstr("| `parallel.ranks` | whole number or auto |  | `auto` | at least 1 |"));
  EXPECT_THAT(doc, HasSubstr("| one of red, blue |"));
}

TEST(SchemaTest, JsonSchemaDescribesEveryKey) {
  Variables v;
  Schema schema;
  Declare(v, schema);
  const nlohmann::json root = nlohmann::json::parse(schema.ToJsonSchema());
  EXPECT_EQ(root["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(root["additionalProperties"], false);
  const nlohmann::json& optimizer = root["properties"]["optimizer"];
  EXPECT_EQ(optimizer["additionalProperties"], false);
  EXPECT_EQ(optimizer["description"], "Updates.");
  const nlohmann::json& rate = optimizer["properties"]["rate"];
  EXPECT_EQ(rate["type"], "number");
  EXPECT_EQ(rate["exclusiveMinimum"], 0);
  EXPECT_EQ(rate["maximum"], 1);
  EXPECT_EQ(rate["default"], 1e-3);
  EXPECT_EQ(optimizer["properties"]["count"]["description"], "A count. Unit: steps.");
  const nlohmann::json& parallel = root["properties"]["parallel"]["properties"];
  EXPECT_EQ(parallel["ranks"]["anyOf"][1]["const"], "auto");
  EXPECT_EQ(parallel["color"]["enum"], (std::vector<std::string>{"red", "blue"}));
  const nlohmann::json& zero = parallel["zero"]["properties"];
  EXPECT_EQ(zero["list"]["items"]["minimum"], 0);
  EXPECT_EQ(zero["parts"]["items"]["properties"]["weight"]["exclusiveMinimum"], 0);
}

TEST(SchemaTest, NearnessCountsLettersAndWords) {
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("lr", "rl"), 1u) << "a swap of neighbours";
  EXPECT_EQ(NameSimilarity("stage", "stage"), 1.0);
  EXPECT_GT(NameSimilarity("expert_paralel_size", "parallel.expert"),
            NameSimilarity("expert_paralel_size", "moe.expert_size"));
  EXPECT_EQ(NearestName("cosin", {"constant", "cosine", "linear"}), "cosine");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace meshfold::train
