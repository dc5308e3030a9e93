"""Texts for the demo: Chinese government work orders of six classes, as a citizens' hotline writes them down.

A text is an opening (who, when), a place, a matter of its class, and a request; all drawn from one seeded generator,
so the same seed gives the same texts. Openings, places, numbers and requests are shared by all classes: only the matter
tells them apart, and several matters share words on purpose. No text comes twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

LABELS = ("交通", "环保", "教育", "医疗", "住房", "其他")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

#: Not part of what is published: shown to the model when it is done.
NEW_SENTENCES = (
    "市民陈女士来电反映，高新区学府路12号附近早高峰车辆排队严重，路口信号灯忽明忽暗，希望交警到场疏导。",
    "网友留言称，江北区翠湖苑门口河道漂着油污，气味刺鼻，怀疑附近工厂偷排废水，请相关部门尽快核实处理。",
    "周先生通过热线反映，滨海新区青年路8号附近孩子升小学报不上名，学校迟迟没有公布招生名单，望尽快答复。",
)

_DISTRICTS = ("城东区", "城西区", "高新区", "江北区", "南山区", "滨海新区", "龙泉区", "云溪县")
_ROADS = ("人民路", "解放路", "建设大道", "中山路", "和平街", "迎宾大道", "学府路", "滨江路", "工业园路", "青年路")
_ESTATES = ("幸福家园", "锦绣花园", "阳光新城", "翠湖苑", "和谐佳苑", "东方名都", "金桂小区", "梧桐里")
_NAMES = "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗"
_OPENINGS = (
    "市民{name}{title}来电反映",
    "{name}{title}通过热线反映",
    "网友留言称",
    "{name}{title}于{month}月{day}日来信反映",
    "辖区居民多次反映",
    "来电人{name}{title}投诉",
)
_REQUESTS = (
    "请相关部门尽快核实处理。",
    "希望{days}日内给予答复。",
    "要求现场查看并回复，联系电话尾号{tail}。",
    "此前已反映{times}次未解决，请督办。",
    "请协调处理，谢谢。",
    "望尽快整改。",
)
_MATTERS: dict[str, tuple[str, ...]] = {
    "交通": (
        "路口信号灯故障，早高峰拥堵严重",
        "{number}路公交车等候超过{minutes}分钟仍不发车",
        "路面坑洼{number}处，车辆行驶颠簸，已有电动车摔倒",
        "大货车夜间超速行驶，过街斑马线没有安全岛",
        "车辆占用非机动车道违停，行人只能走机动车道",
        "地铁站出口没有公交接驳，出租车拒载",
        "道路施工围挡长达{days}天，交通标线不清",
        "学校门口接送车辆乱停，交通堵塞{minutes}分钟",
        "早晚高峰车辆排队超过{minutes}分钟，无人疏导",
        "信号灯配时不合理，左转车辆{times}个周期过不去",
        "共享单车堆满人行道，盲道被占",
        "{number}路公交车临时改道，站牌没有通知乘客",
    ),
    "环保": (
        "工厂夜间偷排污水，河道发黑发臭",
        "工地昼夜施工，噪音超过{number}分贝，扬尘严重",
        "烧烤店油烟直排，居民不敢开窗",
        "有人露天焚烧垃圾，气味刺鼻持续{minutes}分钟",
        "垃圾站渗滤液流到路面，臭味扰民",
        "化工企业排放废气，空气中有异味",
        "河边倾倒建筑垃圾约{number}车，污染水源",
        "养殖场粪污直排沟渠，蚊蝇滋生",
        "河面漂浮油污和死鱼，疑似上游排放废水",
        "汽修店喷漆气味刺鼻，没有任何处理设施",
        "夜间{hour}点后工厂机器噪音扰民，无法入睡",
        "雨水井被倒入油污，溢流到河道",
    ),
    "教育": (
        "小学学位紧张，{number}名孩子无法就近入学",
        "培训机构关门跑路，{number}节课的学费不退",
        "幼儿园收费上涨，每月多收{number}元伙食费",
        "中学晚自习超时，学生作业写到{hour}点",
        "学校食堂饭菜质量差，家长要求公开采购",
        "老师有偿补课，班级强制购买教辅",
        "转学手续办理{days}天没有结果，孩子无法上课",
        "高中招生政策不清，家长咨询无人答复",
        "小学报名系统打不开，招生名单迟迟没有公布",
        "学校强制购买校服，{number}元一套",
        "幼儿园老师频繁更换，孩子不愿上学",
        "初中学籍信息有误，影响孩子中考报名",
    ),
    "医疗": (
        "医院挂号排队{minutes}分钟，专家号被号贩子占用",
        "社区卫生服务中心疫苗缺货，已等{days}天",
        "医保报销材料退回{times}次，住院费用{number}元未结",
        "急诊护士态度差，病人等候{minutes}分钟无人接诊",
        "药店销售过期药品，药师不在岗",
        "异地就医备案失败，医保卡无法结算",
        "诊所无证行医，输液后患者发烧",
        "体检报告{days}天未出，医生电话无人接听",
        "手术排期已推迟{times}次，病人家属焦急",
        "医院停止发放慢性病药品，老人买不到药",
        "救护车{minutes}分钟才到，延误病情",
        "门诊重复检查，多收{number}元检查费",
    ),
    "住房": (
        "公租房申请{days}天没有审核结果",
        "房屋漏水严重，物业和开发商互相推诿",
        "开发商延期交房{days}天，业主拿不到房产证",
        "物业费每平米上涨{times}元，电梯却经常停运",
        "中介不退租房押金{number}元",
        "老旧小区外墙脱落，维修基金无法使用",
        "公积金贷款审批缓慢，购房合同即将到期",
        "楼上业主违建阳光房，房屋承重墙被拆",
        "小区电梯困人{times}次，物业不维修",
        "房屋交付后墙面开裂{number}处，开发商不管",
        "租房合同未到期，房东强行清退租户",
        "小区停电停梯{hour}小时，高层业主无法回家",
    ),
    "其他": (
        "办理营业执照跑了{times}次，窗口说法不一",
        "路灯{number}盏不亮，夜间出行不便",
        "快递丢失，赔偿{number}元迟迟不到账",
        "公园健身器材损坏{number}件，无人维修",
        "停水{hour}小时没有通知，热线打不通",
        "流浪狗成群，小孩老人不敢下楼",
        "网购商品是假货，商家拒绝退款{number}元",
        "社保补缴信息有误，服务大厅系统故障",
        "手机号被停机，营业厅要求本人到场{times}次",
        "健身房倒闭，会员卡余额{number}元无法退",
        "身份证办理{days}天没有领到",
        "燃气表走字异常，多扣{number}元",
    ),
}


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """One record of the demo."""

    id: str
    text: str
    label: str
    timestamp: str

    def fields(self) -> dict[str, str]:
        """As it is published."""
        return {"id": self.id, "text": self.text, "label": self.label, "timestamp": self.timestamp}


def work_orders(count: int, seed: int) -> Iterator[WorkOrder]:
    """`count` distinct work orders."""
    random = Random(seed)
    seen: set[str] = set()
    begun = datetime.fromisoformat("2026-11-23T08:00:00+08:00")
    for number in range(count):
        label = LABELS[random.randrange(len(LABELS))]
        text = _text(random, label)
        while text in seen:
            text = _text(random, label)
        seen.add(text)
        moment = begun + timedelta(seconds=7 * number)
        yield WorkOrder(f"GD{seed % 100:02d}-{number:07d}", text, label, moment.isoformat())


def vocabulary(texts: Iterable[str]) -> list[str]:
    """A `vocab.txt` that knows every character of `texts`; letters and digits also inside a word."""
    characters = sorted({character for text in texts for character in text.lower() if not character.isspace()})
    inside = [f"##{character}" for character in characters if character.isascii() and character.isalnum()]
    return [*SPECIAL_TOKENS, *characters, *inside]


def _text(random: Random, label: str) -> str:
    parts = (
        _pick(random, _OPENINGS),
        "，" + _place(random),
        _pick(random, _MATTERS[label]),
        "，" + _pick(random, _REQUESTS),
    )
    values: dict[str, object] = {
        "name": _NAMES[random.randrange(len(_NAMES))],
        "title": _pick(random, ("先生", "女士")),
        "month": random.randrange(1, 13),
        "day": random.randrange(1, 29),
        "hour": random.randrange(2, 13),
        "minutes": 5 * random.randrange(2, 25),
        "days": random.randrange(3, 180),
        "times": random.randrange(2, 9),
        "number": random.randrange(2, 990),
        "tail": f"{random.randrange(10_000):04d}",
    }
    return "".join(parts).format(**values)


def _place(random: Random) -> str:
    district, road, estate = (_pick(random, names) for names in (_DISTRICTS, _ROADS, _ESTATES))
    building = random.randrange(1, 60)
    return _pick(
        random, (f"{district}{road}{building}号附近", f"{district}{estate}{building}栋", f"{road}{estate}门口")
    )


def _pick(random: Random, choices: tuple[str, ...]) -> str:
    return choices[random.randrange(len(choices))]
